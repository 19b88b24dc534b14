"""From a step's plan to the tensors of a forward pass, without a Python loop over tokens."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagelet.engine.layers.context import AttentionMetadata
from pagelet.engine.runner.device import to_device
from pagelet.engine.runner.state import IntArray, RequestRows
from pagelet.engine.step import SchedulerOutput


@dataclasses.dataclass
class StepInputs:
    """One step's batch. Tokens are flat: request after request, in the plan's order."""

    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    attention: list[AttentionMetadata]  # one a KV group
    rows: IntArray  # [num_reqs] state rows
    query_start: IntArray  # [num_reqs + 1] each request's first token in the batch
    num_computed: IntArray  # [num_reqs] tokens before this step's
    samples: npt.NDArray[np.bool_]  # [num_reqs]
    # [num_reqs] context with this step's tokens: also the position of the token sampled next
    seq_lens: IntArray
    num_drafts: IntArray | None  # [num_reqs] last tokens that are guesses; None if there are none

    def sampled_rows(self) -> tuple[IntArray, IntArray, IntArray]:
        """Where tokens are drawn: after the last known token of each request that samples, and
        after each of its drafts. For each row [num_rows] its request's index in the batch, the
        index in the batch of the token that it follows, and the position that it is drawn for."""
        sampling = np.flatnonzero(self.samples)
        if self.num_drafts is None:
            return sampling, self.query_start[1:][sampling] - 1, self.seq_lens[sampling]
        counts = 1 + self.num_drafts[sampling]
        requests = np.repeat(sampling, counts)
        ends = np.cumsum(counts)
        before_last = np.repeat(ends, counts) - 1 - np.arange(len(requests))
        tokens = self.query_start[1:][requests] - 1 - before_last
        return requests, tokens, self.seq_lens[requests] - before_last


def build_inputs(
    plan: SchedulerOutput, rows: RequestRows, groups: Sequence[int] | None = None
) -> StepInputs:
    """Gathers a step's tokens, positions, slots and block tables from the state rows; of these KV
    groups, or of all."""
    device = rows.token_ids.device
    row_index = rows.find(entry.request_id for entry in plan.scheduled)  # [num_reqs]
    num_reqs = len(row_index)
    num_computed = np.array([entry.num_computed_tokens for entry in plan.scheduled], np.int64)
    query_lens = np.array([entry.num_tokens for entry in plan.scheduled], np.int64)
    samples = np.array([entry.samples for entry in plan.scheduled], np.bool_)
    num_drafts = None
    if any(entry.draft_token_ids for entry in plan.scheduled):
        num_drafts = np.array([len(entry.draft_token_ids) for entry in plan.scheduled])
    query_start = np.zeros(num_reqs + 1, np.int64)
    np.cumsum(query_lens, out=query_start[1:])
    seq_lens = num_computed + query_lens

    if query_start[-1] == num_reqs:  # a token each, as in most steps
        positions, row_of_token = num_computed, row_index
    else:
        request_of_token = np.repeat(np.arange(num_reqs), query_lens)  # [num_tokens]
        offset = num_computed - query_start[:-1]
        positions = np.arange(query_start[-1]) + offset[request_of_token]
        row_of_token = row_index[request_of_token]
    input_ids = rows.tokens_at(row_of_token, positions)

    block_size = rows.block_size
    block_index, in_block = np.divmod(positions, block_size)
    query_lens_cpu, seq_lens_cpu = query_lens.tolist(), seq_lens.tolist()
    max_query_len, max_seq_len = max(query_lens_cpu), max(seq_lens_cpu)
    num_blocks = -(-max_seq_len // block_size)
    query_start_device = to_device(query_start.astype(np.int32), device)
    seq_lens_device = to_device(seq_lens.astype(np.int32), device)
    attention = []
    tables = rows.block_tables if groups is None else [rows.block_tables[i] for i in groups]
    for table in tables:
        block_of_token = table[row_of_token, block_index]
        assert block_of_token.all(), "a token would be written to the null block"
        slots = block_of_token.astype(np.int64) * block_size + in_block
        attention.append(
            AttentionMetadata(
                query_start_loc=query_start_device,
                seq_lens=seq_lens_device,
                block_table=to_device(table[row_index, :num_blocks], device),
                slot_mapping=to_device(slots, device),
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
                query_lens_cpu=query_lens_cpu,
                seq_lens_cpu=seq_lens_cpu,
            )
        )
    return StepInputs(
        input_ids,
        to_device(positions, device),
        attention,
        row_index,
        query_start,
        num_computed,
        samples,
        seq_lens,
        num_drafts,
    )
