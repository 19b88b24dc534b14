"""Decode steps of a CPU in one call, from state rows to drawn tokens.

Between the operations of a step all cores wait for Python, and its code is cold by then, as the
weights of a step have gone through the caches: what takes 50 microseconds of a busy interpreter
takes 200 there, and threads that fell asleep are woken up again. A step in which every request
computes one token and draws one is recorded as a whole, but for the place where it waits for the
masks of grammars, and up to its logits if a request asks for more of them than a token. Others take
the general way, to the same tokens.
"""

from collections.abc import Callable

import numpy as np
import torch

from pagelet.engine.layers.recording import Recorder
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.runner.masks import masked_rows
from pagelet.engine.runner.results import BROKEN
from pagelet.engine.runner.sampler import draw_columns
from pagelet.engine.runner.state import IntArray, RequestRows
from pagelet.engine.step import RunnerOutput, SampledToken, SchedulerOutput, TokenMasks
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.decode_inputs.cpu import record_decode_inputs, record_keep_tokens
from pagelet.kernels.decode_inputs.reference import BlockTables, DecodeInputs
from pagelet.kernels.sample.cpu import RecordedSample
from pagelet.kernels.token_mask.cpu import RecordedMask

_LOGITS_BYTES = 32 << 20
"""What is kept for logits bounds the requests of such a step. Larger ones hide Python's part."""


class PlainDecode:
    """A recorded forward pass with what stands before and after it."""

    def __init__(
        self,
        recorder: Recorder,
        forward: Program,
        hidden: torch.Tensor,
        model: CausalLM,
        rows: RequestRows,
        num_tokens: int,
    ) -> None:
        """`forward` is all of the model's program, which leaves the final states in `hidden`;
        `num_tokens` of the vocabulary may be drawn."""
        self._rows = rows
        fitting = _LOGITS_BYTES // (4 * model.config.vocab_size)
        self._most = max(1, min(fitting, recorder.max_requests))
        self._row_index = np.zeros(self._most, np.int64)
        self._positions = recorder.positions.numpy()
        inputs = DecodeInputs(
            torch.from_numpy(self._row_index),
            recorder.positions,
            rows.token_ids,
            recorder.input_ids,
            recorder.query_start_loc,
            recorder.seq_lens,
            tuple(
                BlockTables(torch.from_numpy(table), group.block_table, group.slot_mapping)
                for table, group in zip(rows.block_tables, recorder.groups, strict=True)
            ),
            rows.block_size,
        )
        self._until_logits = Program()
        record_decode_inputs(self._until_logits, inputs)
        self._until_logits.extend(forward)
        assert model.lm_head is not None
        self._logits = model.lm_head.record(self._until_logits, hidden[: self._most])
        logits = self._logits[:, :num_tokens]
        draw = Program()
        self._draw = RecordedSample(draw, logits)
        record_keep_tokens(draw, inputs, self._draw.token_ids)
        self._token_ids, self._broken = self._draw.token_ids.numpy(), self._draw.broken.numpy()
        self._draws = False
        """Whether the last step drew at a temperature, so that its columns are set."""
        self._from_masks = Program()
        self._mask = RecordedMask(self._from_masks, logits, rows=1)
        self._from_masks.extend(draw)
        self._whole = Program()
        self._whole.extend(self._until_logits)
        self._whole.extend(draw)

    def takes(self, plan: SchedulerOutput) -> bool:
        """Whether a step is of this kind."""
        return (
            0 < len(plan.scheduled) <= self._most
            and not self._rows.pooling
            and not self._rows.with_prompt_logprobs
            and all(
                entry.num_tokens == 1 and entry.samples and not entry.draft_token_ids
                for entry in plan.scheduled
            )
        )

    def run(
        self, plan: SchedulerOutput, masks: Callable[[], TokenMasks] | None = None
    ) -> RunnerOutput:
        """Computes such a step, and writes its tokens to the state rows. No row may look at logits.
        `masks` waits for those of a plan with `constrained` requests."""
        count = len(plan.scheduled)
        row_index, positions = self._place(plan)
        if self._rows.drawn or self._draws:
            self._draws = bool(self._rows.drawn)
            columns = draw_columns(self._rows, row_index, positions + 1)
            self._draw.use(
                columns.temperature,
                columns.uniforms,
                min_p=columns.min_p,
                top_k=columns.top_k,
                top_p=columns.top_p,
            )
        if not plan.constrained:
            self._whole.run(count, count)
        else:
            self._until_logits.run(count, count)
            assert masks is not None
            masked, words = masked_rows(np.array(plan.constrained), masks)()
            self._mask.use(masked, words)
            self._from_masks.run(count, len(masked))
        return RunnerOutput(
            plan.step,
            [
                SampledToken(entry.request_id, [], error=BROKEN)
                if broken
                else SampledToken(entry.request_id, [token_id])
                for entry, token_id, broken in zip(
                    plan.scheduled,
                    self._token_ids[:count].tolist(),
                    self._broken[:count].tolist(),
                    strict=True,
                )
            ],
        )

    def compute_logits(self, plan: SchedulerOutput) -> tuple[torch.Tensor, IntArray, IntArray]:
        """Computes such a step up to its logits [num_requests, vocab_size], which are there until
        the next one; the state rows of its requests, and the positions of the tokens to draw."""
        count = len(plan.scheduled)
        row_index, positions = self._place(plan)
        self._until_logits.run(count, count)
        return self._logits[:count], row_index, positions + 1

    def _place(self, plan: SchedulerOutput) -> tuple[IntArray, IntArray]:
        """The state rows of a step's requests, and the positions of their tokens, both written to
        where the program finds them."""
        count = len(plan.scheduled)
        row_index, positions = self._row_index[:count], self._positions[:count]
        row_index[:] = self._rows.find(entry.request_id for entry in plan.scheduled)
        positions[:] = [entry.num_computed_tokens for entry in plan.scheduled]
        return row_index, positions
