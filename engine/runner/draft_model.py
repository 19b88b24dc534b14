"""A draft model beside the model: it reads the same tokens and says which may come next.

Its keys and values lie in the blocks of the model's own, in pages of its own, so that what is
shared, cached and given back of the one is so of the other. It need not keep up: while nothing is
drafted it costs nothing, and reads later what it missed. How far it has come is kept for each
block, since blocks are shared among requests and outlive them.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.kv.spec import KVGroup, KVLayout
from pagelet.engine.layers.context import ALONE
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.device import to_device
from pagelet.engine.runner.inputs import StepInputs, build_inputs
from pagelet.engine.runner.kv_pages import PageCopier, PageShape
from pagelet.engine.runner.load_model import LoadedModel, Weights, load_model
from pagelet.engine.runner.sampler import guess_tokens, raw_logits
from pagelet.engine.runner.state import IntArray, RequestRows
from pagelet.engine.step import SampledToken, ScheduledRequest, SchedulerOutput
from pagelet.protocol.config import EngineOptions

_CATCH_UP_TOKENS = 256
"""Most tokens that were missed and are read in one step, which would else become too long."""


@dataclasses.dataclass(frozen=True)
class DraftSource:
    """What to load."""

    config: ModelConfig
    weights: Weights | None
    """None: random ones."""


def check_draft(config: ModelConfig, layout: KVLayout, max_model_len: int) -> None:
    """Raises `ConfigurationError` if a draft model cannot go along with a model of this layout."""
    if config.max_position_embeddings < max_model_len:
        raise ConfigurationError(
            f"the draft model is for {config.max_position_embeddings} positions: lower "
            f"--max-model-len from {max_model_len} to that, or take another draft model"
        )
    if all(group.sliding_window is not None for group in layout.groups):
        raise ConfigurationError(
            "a draft model needs blocks that are kept, but all layers of this model have sliding "
            "windows, whose blocks are given back: take the speculation method ngram"
        )


@dataclasses.dataclass(frozen=True)
class LoadedDraft:
    """A draft model without a KV cache yet."""

    loaded: LoadedModel
    page: PageShape
    layout: KVLayout
    """Of its own pages: all in the blocks of one group."""

    @classmethod
    def load(
        cls,
        source: DraftSource,
        options: EngineOptions,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "LoadedDraft":
        """Every rank has all of it: it is small, and what it says need not be sent from one to
        another. Raises `ConfigurationError`."""
        assert options.speculation is not None
        loaded = load_model(
            source.config,
            source.weights,
            options,
            options.speculation.quantization,
            dtype=dtype,
            device=device,
            ranks=ALONE,
        )
        page = PageShape.of(source.config, options.cache.block_size, loaded.kv_dtype)
        layers = tuple(range(source.config.num_layers))
        layout = KVLayout((KVGroup(layers, None),), len(layers), page.num_bytes)
        return cls(loaded, page, layout)


class DraftModel:
    """Proposes tokens at the end of steps, which writes them to the state rows, too."""

    def __init__(
        self,
        draft: LoadedDraft,
        rows: RequestRows,
        layout: KVLayout,
        num_blocks: int,
        vocab_size: int,
        options: EngineOptions,
        max_model_len: int,
    ) -> None:
        """`layout`, `num_blocks` and `vocab_size` are those of the model that it drafts for. It
        gets the metadata of the first group of full attention."""
        self._model = draft.loaded.model
        layers = range(self._model.config.num_layers)
        kv = draft.page.allocate(draft.layout, layers, num_blocks, self._model.placement.device)
        self._copier = PageCopier(kv)
        self._forward = draft.loaded.bind(kv, 1, options, max_model_len)
        self._vocab_size = vocab_size
        self._rows = rows
        self._group = [group.sliding_window for group in layout.groups].index(None)
        self._max_tokens = options.scheduler.max_num_batched_tokens
        self._num_read = np.zeros(num_blocks, np.int64)
        """Of each block the tokens from its first one on whose keys and values are there."""

    @torch.inference_mode()
    def rehearse(self, plan: SchedulerOutput) -> None:
        """Reads a plan's tokens, the first of its requests, so that kernels are compiled."""
        self._rows.update(plan)
        self._run(plan.scheduled)

    @torch.inference_mode()
    def propose(
        self, plan: SchedulerOutput, inputs: StepInputs, sampled: Sequence[SampledToken]
    ) -> None:
        """Gives `sampled`, a step's results in the plan's order, their proposals. `forget_written`
        must have been called for the step."""
        reads, ends = self._plan_reads(plan, inputs, sampled)
        if not reads:
            return
        hidden, batch = self._run(reads)
        lengths = np.diff(batch.query_start)
        blocks, offsets = self._places(batch.rows, batch.num_computed, lengths)
        self._num_read[blocks] = offsets + 1
        asked = np.array([end is not None for end in ends])
        if not asked.any():
            return
        last = to_device(batch.query_start[1:][asked] - 1, hidden.device)
        positions = batch.seq_lens[asked]
        token_ids = self._draw(hidden[last], batch.rows[asked], positions)
        entries = [end for end in ends if end is not None]
        counts = np.array([plan.scheduled[index].num_proposals for index in entries])
        # Of each further round: which requests draw, and their tokens.
        proposed = [(np.arange(len(entries)), token_ids)]
        for place in range(1, int(counts.max())):
            still = np.flatnonzero(counts > place)
            at = (positions[still] + place - 1).tolist()
            hidden, batch = self._run(
                [
                    ScheduledRequest(plan.scheduled[entries[order]].request_id, position, 1, True)
                    for order, position in zip(still.tolist(), at, strict=True)
                ]
            )
            token_ids = self._draw(hidden, batch.rows, batch.seq_lens)
            proposed.append((still, token_ids))
        for still, token_ids in proposed:
            for order, token_id in zip(still.tolist(), token_ids.tolist(), strict=True):
                result = sampled[entries[order]]
                result.draft_token_ids = [*result.draft_token_ids, token_id]

    def _plan_reads(
        self, plan: SchedulerOutput, inputs: StepInputs, sampled: Sequence[SampledToken]
    ) -> tuple[list[ScheduledRequest], list[int | None]]:
        """What to read of each request that is to have proposals; and its index in the plan, if it
        will have been read up to its last known token."""
        reads: list[ScheduledRequest] = []
        ends: list[int | None] = []
        left = self._max_tokens
        for index, (entry, result) in enumerate(zip(plan.scheduled, sampled, strict=True)):
            if entry.num_proposals == 0 or result.error is not None:
                continue
            known = entry.num_computed_tokens + entry.num_tokens
            known += len(result.token_ids) - len(entry.draft_token_ids)
            begin = self._first_unread(inputs.rows[index], entry.num_computed_tokens)
            count = min(known - begin, max(_CATCH_UP_TOKENS, entry.num_tokens + 1), left)
            if count <= 0:
                continue
            left -= count
            reads.append(ScheduledRequest(entry.request_id, begin, count, False))
            whole = entry.samples and begin + count == known
            ends.append(index if whole else None)
        return reads, ends

    def _first_unread(self, row: int, num_computed: int) -> int:
        """The first token of a sequence that this model has to read, the model itself having
        computed the first `num_computed` ones in earlier steps."""
        size = self._rows.block_size
        table = self._rows.block_tables[self._group]
        num_read = self._num_read[table[row, : -(-num_computed // size)]]
        behind = np.flatnonzero(num_read < size)
        if len(behind) == 0:
            return num_computed
        return min(int(behind[0]) * size + int(num_read[behind[0]]), num_computed)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As the model's own pages are, see `PageCopier`."""
        self._copier.copy(pairs)
        for source, target in pairs:
            self._num_read[target] = self._num_read[source]

    def forget_written(self, inputs: StepInputs) -> None:
        """What the step wrote to its blocks are other tokens than those read there before."""
        lengths = np.diff(inputs.query_start)
        blocks, offsets = self._places(inputs.rows, inputs.num_computed, lengths)
        np.minimum.at(self._num_read, blocks, offsets)

    def _places(
        self, rows: IntArray, begins: IntArray, lengths: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Blocks, and offsets in them, of tokens [begin, begin + length) of each row."""
        ends = np.cumsum(lengths)
        positions = np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)
        index, offsets = np.divmod(positions, self._rows.block_size)
        table = self._rows.block_tables[self._group]
        return table[np.repeat(rows, lengths), index].astype(np.int64), offsets

    def _run(self, entries: list[ScheduledRequest]) -> tuple[torch.Tensor, StepInputs]:
        """Final hidden states of these tokens, and the batch that they are in."""
        total = sum(entry.num_tokens for entry in entries)
        inputs = build_inputs(SchedulerOutput(0, [], entries, [], total), self._rows, [self._group])
        # Ids that only the model has are read as some other token.
        input_ids = inputs.input_ids.clamp(max=self._model.config.vocab_size - 1)
        return self._forward(input_ids, inputs.positions, inputs.attention), inputs

    def _draw(self, hidden: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """The tokens at these positions, as the requests draw theirs."""
        logits = raw_logits(self._model.compute_logits(hidden), self._vocab_size)
        missing = max(0, self._vocab_size - logits.shape[1])
        logits = F.pad(logits[:, : self._vocab_size], (0, missing), value=-math.inf)
        token_ids = guess_tokens(logits, self._rows, rows, positions)
        self._rows.append(rows, positions, token_ids)
        return token_ids
