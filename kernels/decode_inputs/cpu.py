"""In C++, for steps that are recorded as a whole."""

import torch

from pagelet.kernels.cpu.args import DecodeInputsArgs, KeepTokensArgs, OpKind
from pagelet.kernels.cpu.program import Program, pointer
from pagelet.kernels.decode_inputs.reference import DecodeInputs


def record_decode_inputs(program: Program, inputs: DecodeInputs, *, rows: int = 0) -> None:
    """Appends `reference.gather` of so many requests."""
    tables = [(group.of_rows, group.of_step, group.slots) for group in inputs.groups]
    strides = {table.stride(0) for of_rows, of_step, _ in tables for table in (of_rows, of_step)}
    assert len(strides) == 1, "all groups have tables of one width"
    [stride] = strides
    groups = torch.tensor(
        [[*(each.data_ptr() for each in group), stride] for group in tables], dtype=torch.int64
    )
    buffers = (
        inputs.row_index,
        inputs.positions,
        inputs.token_ids,
        inputs.input_ids,
        inputs.query_start_loc,
        inputs.seq_lens,
    )
    for buffer in (*buffers, *(each for group in tables for each in group)):
        assert buffer.is_contiguous()
    inputs.query_start_loc[0] = 0
    args = DecodeInputsArgs(
        rows,
        *map(pointer, buffers),
        pointer(groups),
        token_ids_stride=inputs.token_ids.stride(0),
        num_groups=len(tables),
        block_size=inputs.block_size,
    )
    kept = tuple(each for group in tables for each in group)
    program.append(OpKind.DECODE_INPUTS, args, (*buffers, groups, *kept))


def record_keep_tokens(
    program: Program, inputs: DecodeInputs, drawn: torch.Tensor, *, rows: int = 0
) -> None:
    """Appends `reference.keep` of so many requests."""
    buffers = inputs.row_index, inputs.positions, drawn, inputs.token_ids
    for buffer in buffers:
        assert buffer.is_contiguous()
    assert drawn.dtype == torch.int64
    args = KeepTokensArgs(rows, *map(pointer, buffers), token_ids_stride=inputs.token_ids.stride(0))
    program.append(OpKind.KEEP_TOKENS, args, buffers)
