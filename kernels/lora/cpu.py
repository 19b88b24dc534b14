"""The products of adapters in C++: those of all of a step's adapters in one operation a layer.

A row's result is bit-equal whatever the other rows of the call and their adapters.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import torch

from pagelet.kernels.cpu.args import LoraArgs, OpKind
from pagelet.kernels.cpu.memory import own_bytes
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride
from pagelet.kernels.linear.packed import LinearFormat, PackedLinear, pack_linear
from pagelet.kernels.lora.adapters import AdapterRows, AdapterTable
from pagelet.kernels.lora.low_rank import LowRank

_FORMATS: dict[torch.dtype, LinearFormat] = {torch.float32: "f32", torch.bfloat16: "bf16"}


@dataclasses.dataclass(frozen=True)
class PackedLowRank:
    """A `LowRank` as the library reads it."""

    a: PackedLinear
    b: PackedLinear

    @property
    def addresses(self) -> tuple[int, int]:
        """Of both."""
        return self.a.data.data_ptr(), self.b.data.data_ptr()

    @property
    def rank(self) -> int:
        """Outputs of `a`."""
        return self.a.out_size


def pack_low_rank(pairs: Sequence[LowRank], dtype: torch.dtype) -> list[PackedLowRank]:
    """Packs matrices for inputs and outputs of this dtype, all in one piece of memory, which is
    given back with the last of them."""
    packed = [pack_linear(each, _FORMATS[dtype]) for pair in pairs for each in (pair.a, pair.b)]
    ends = list(itertools.accumulate(each.data.numel() for each in packed))
    memory = own_bytes(ends[-1] if ends else 0)
    moved = []
    for each, end in zip(packed, ends, strict=True):
        data = memory[end - each.data.numel() : end]
        moved.append(dataclasses.replace(each, data=data.copy_(each.data)))
    return [PackedLowRank(a, b) for a, b in zip(moved[::2], moved[1::2], strict=True)]


def record_low_rank(
    program: Program,
    x: torch.Tensor,
    out: torch.Tensor,
    table: AdapterTable,
    adapter_rows: AdapterRows,
    *,
    rows: int = 0,
) -> None:
    """Appends what `reference.add_low_rank` does, with the adapters that are in `table` by then,
    on the rows that are in `adapter_rows`. x and out have the dtype that those were packed for."""
    assert out.dtype == x.dtype
    assert out.shape[1] == int(table.part_sizes.sum())
    args = LoraArgs(
        rows=rows,
        x=pointer(x),
        y=pointer(out),
        matrices=pointer(table.matrices),
        part_sizes=pointer(table.part_sizes),
        num_blocks=pointer(adapter_rows.num_blocks),
        blocks=pointer(adapter_rows.blocks),
        row_ids=pointer(adapter_rows.row_ids),
        x_stride=row_stride(x, name="x"),
        y_stride=row_stride(out, name="out"),
        dtype=dtype_code(x, name="x"),
        k=x.shape[1],
        num_parts=len(table.part_sizes),
    )
    buffers = (x, out, table.matrices, table.part_sizes)
    program.append(
        OpKind.LORA,
        args,
        (*buffers, adapter_rows.num_blocks, adapter_rows.blocks, adapter_rows.row_ids),
    )


def add_low_rank(
    out: torch.Tensor,
    x: torch.Tensor,
    part_sizes: Sequence[int],
    groups: Sequence[tuple[torch.Tensor, Sequence[LowRank | None]]],
) -> None:
    """As `reference.add_low_rank`, for float32 and bfloat16."""
    largest = max((p.rank for _, parts in groups for p in parts if p is not None), default=0)
    table = AdapterTable(len(groups), part_sizes, largest, x.device)
    for slot, (_, parts) in enumerate(groups):
        packed = iter(pack_low_rank([part for part in parts if part is not None], x.dtype))
        table.put(slot, [None if part is None else next(packed) for part in parts])
    adapter_rows = AdapterRows(max(1, len(x)), x.device)
    adapter_rows.set([(slot, rows) for slot, (rows, _) in enumerate(groups)])
    program = Program()
    record_low_rank(program, x, out, table, adapter_rows)
    program.run(len(x))
