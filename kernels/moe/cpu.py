"""The mixture of experts on packed weights, in C++.

A row's result is bit-equal whatever the other rows of the call, their number, and the number of
threads.
"""

import dataclasses
from collections.abc import Sequence

import torch

from pagelet.kernels.cpu.args import MoeArgs, OpKind
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride
from pagelet.kernels.linear.packed import LinearFormat, PackedLinear, pack_linear


@dataclasses.dataclass(frozen=True)
class PackedExpert:
    """The matrices of an expert; each may have a format of its own."""

    gate: PackedLinear  # [intermediate_size, hidden_size]
    up: PackedLinear  # as gate
    down: PackedLinear  # [hidden_size, intermediate_size]


def record_moe(
    program: Program,
    x: torch.Tensor,
    router_logits: torch.Tensor,
    experts: Sequence[PackedExpert],
    out: torch.Tensor,
    top_k: int,
    renormalize: bool,
    first_expert: int = 0,
    *,
    rows: int = 0,
) -> None:
    """Appends what `reference.moe` does, on experts from `first_expert` on.

    x, out: [max_rows, hidden_size], router_logits: [max_rows, num_experts], all float32 or all
    bfloat16.
    """
    assert x.dtype == router_logits.dtype == out.dtype
    assert out.shape[1] == x.shape[1] == experts[0].gate.in_size
    matrices = [packed for each in experts for packed in (each.gate, each.up, each.down)]
    table = torch.tensor([[packed.data.data_ptr(), packed.code] for packed in matrices])
    args = MoeArgs(
        rows=rows,
        x=pointer(x),
        router_logits=pointer(router_logits),
        matrices=pointer(table),
        out=pointer(out),
        x_stride=row_stride(x, name="x"),
        logits_stride=row_stride(router_logits, name="router_logits"),
        out_stride=row_stride(out, name="out"),
        dtype=dtype_code(x, name="x"),
        hidden=x.shape[1],
        intermediate=experts[0].gate.out_size,
        num_experts=router_logits.shape[1],
        first_expert=first_expert,
        num_local=len(experts),
        top_k=top_k,
        renormalize=renormalize,
    )
    data = (packed.data for packed in matrices)
    program.append(OpKind.MOE, args, (x, router_logits, table, out, *data))


def pack_experts(
    gate_up: torch.Tensor, down: torch.Tensor, formats: Sequence[LinearFormat]
) -> list[PackedExpert]:
    """Packs matrices as `reference.moe` takes them, an expert in a format, the formats in turn."""
    packed = []
    for expert, (first, last) in enumerate(zip(gate_up, down, strict=True)):
        format_ = formats[expert % len(formats)]
        gate, up = (pack_linear(matrix, format_) for matrix in first.chunk(2))
        packed.append(PackedExpert(gate, up, pack_linear(last, format_)))
    return packed


def moe(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    experts: Sequence[PackedExpert],
    top_k: int,
    renormalize: bool,
    first_expert: int = 0,
) -> torch.Tensor:
    """As `reference.moe`, for float32 and bfloat16."""
    out = torch.empty_like(x)
    program = Program()
    record_moe(program, x, router_logits, experts, out, top_k, renormalize, first_expert)
    program.run(len(x))
    return out
