"""A request at a time."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class BlockTables:
    """Those of one KV group."""

    of_rows: torch.Tensor
    """[num_state_rows, max_blocks] int32: each row's blocks, in order."""
    of_step: torch.Tensor
    """[max_requests, max_blocks] int32; beyond a request's blocks anything."""
    slots: torch.Tensor
    """[max_requests] int64: where the step's tokens are stored."""


@dataclasses.dataclass(frozen=True)
class DecodeInputs:
    """Buffers that all steps reuse."""

    row_index: torch.Tensor
    """[max_requests] int64: each request's state row."""
    positions: torch.Tensor
    """[max_requests] int64: of the tokens that the step computes, one a request."""
    token_ids: torch.Tensor
    """[num_state_rows, max_model_len] int32: each row's tokens."""
    input_ids: torch.Tensor
    """[max_requests] int64"""
    query_start_loc: torch.Tensor
    """[max_requests + 1] int32"""
    seq_lens: torch.Tensor
    """[max_requests] int32"""
    groups: tuple[BlockTables, ...]
    block_size: int


def gather(inputs: DecodeInputs, num_requests: int) -> None:
    """Fills the first `num_requests` places of `input_ids`, `query_start_loc` (and one more),
    `seq_lens` and the groups' `of_step` and `slots`, as `row_index` and `positions` say."""
    inputs.query_start_loc[: num_requests + 1] = torch.arange(num_requests + 1)
    for request in range(num_requests):
        row, position = int(inputs.row_index[request]), int(inputs.positions[request])
        inputs.input_ids[request] = inputs.token_ids[row, position]
        inputs.seq_lens[request] = position + 1
        last, offset = divmod(position, inputs.block_size)
        for group in inputs.groups:
            blocks = group.of_rows[row, : last + 1]
            group.of_step[request, : last + 1] = blocks
            group.slots[request] = int(blocks[last]) * inputs.block_size + offset


def keep(inputs: DecodeInputs, drawn: torch.Tensor, num_requests: int) -> None:
    """Puts what was drawn [max_requests] int64 for the first `num_requests` behind their tokens at
    `positions`; what is behind the last place of a row is dropped."""
    for request in range(num_requests):
        row, place = int(inputs.row_index[request]), int(inputs.positions[request]) + 1
        if place < inputs.token_ids.shape[1]:
            inputs.token_ids[row, place] = drawn[request]
