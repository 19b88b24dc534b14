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
    num_drafts: IntArray  # [num_reqs] last tokens that are guesses

    @property
    def seq_lens(self) -> IntArray:
        """Each request's context with this step's tokens [num_reqs]: also the position of the
        token that is sampled next."""
        return self.num_computed + np.diff(self.query_start)

    def sampled_rows(self) -> tuple[IntArray, IntArray, IntArray]:
        """Where tokens are drawn: after the last known token of each request that samples, and
        after each of its drafts. For each row [num_rows] its request's index in the batch, the
        index in the batch of the token that it follows, and the position that it is drawn for."""
        sampling = np.flatnonzero(self.samples)
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
    num_computed = np.fromiter((s.num_computed_tokens for s in plan.scheduled), np.int64, num_reqs)
    query_lens = np.fromiter((s.num_tokens for s in plan.scheduled), np.int64, num_reqs)
    samples = np.fromiter((s.samples for s in plan.scheduled), np.bool_, num_reqs)
    num_drafts = np.fromiter((len(s.draft_token_ids) for s in plan.scheduled), np.int64, num_reqs)
    query_start = np.zeros(num_reqs + 1, np.int64)
    np.cumsum(query_lens, out=query_start[1:])
    seq_lens = num_computed + query_lens

    request_of_token = np.repeat(np.arange(num_reqs), query_lens)  # [num_tokens]
    offset = num_computed - query_start[:-1]
    positions = np.arange(query_start[-1]) + offset[request_of_token]
    row_of_token = row_index[request_of_token]
    positions_device = to_device(positions, device)
    input_ids = rows.token_ids[to_device(row_of_token, device), positions_device].long()

    block_size = rows.block_size
    block_index, in_block = np.divmod(positions, block_size)
    num_blocks = -(-int(seq_lens.max()) // block_size)
    used = np.arange(num_blocks) < -(-seq_lens[:, None] // block_size)  # [num_reqs, num_blocks]
    query_start_device = to_device(query_start.astype(np.int32), device)
    seq_lens_device = to_device(seq_lens.astype(np.int32), device)
    query_lens_cpu, seq_lens_cpu = query_lens.tolist(), seq_lens.tolist()
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
                # A reused row holds an earlier request's blocks beyond its own: not to be read.
                block_table=to_device(np.where(used, table[row_index, :num_blocks], 0), device),
                slot_mapping=to_device(slots, device),
                max_query_len=int(query_lens.max()),
                max_seq_len=int(seq_lens.max()),
                query_lens_cpu=query_lens_cpu,
                seq_lens_cpu=seq_lens_cpu,
            )
        )
    return StepInputs(
        input_ids,
        positions_device,
        attention,
        row_index,
        query_start,
        num_computed,
        samples,
        num_drafts,
    )
