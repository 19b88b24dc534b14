"""What a runner remembers of its requests: one persistent row each.

Host-side columns are numpy arrays, so that a step gathers what it needs by row index. Token ids
live on the model's device: the runner writes the tokens that it samples there itself, and the
next step reads them without waiting for anyone.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagelet.engine.kv.spec import KVLayout
from pagelet.engine.runner.device import to_device
from pagelet.engine.step import NewRequestData, ScheduledRequest, SchedulerOutput
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.pooling import PoolingParams
from pagelet.protocol.sampling import SamplingParams

IntArray = npt.NDArray[np.int64]
ParamsArray = npt.NDArray[np.void]
"""Records of `_PARAMS`, one a row."""

_SEED_MASK = (1 << 64) - 1
_PARAMS = np.dtype(
    [
        ("greedy", np.bool_),
        ("temperature", np.float64),
        ("min_p", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("seed", np.uint64),
        ("repetition_penalty", np.float64),
        ("frequency_penalty", np.float64),
        ("presence_penalty", np.float64),
        ("min_tokens", np.int64),
        ("logprobs", np.int64),  # -1: not asked for
        ("prompt_logprobs", np.int64),  # -1: not asked for
    ]
)


class RequestRows:
    """State rows, taken by `NewRequestData` and given back by `dropped_request_ids`."""

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        layout: KVLayout,
        device: torch.device,
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.block_size = block_size
        # Not zeroed: rows that are never used take no memory.
        self.token_ids = torch.empty(max_num_seqs, max_model_len, dtype=torch.int32, device=device)
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        self.params: ParamsArray = np.zeros(max_num_seqs, _PARAMS)
        self.block_tables = [
            np.zeros((max_num_seqs, max_blocks), np.int32) for _ in layout.groups
        ]  # a group: [max_num_seqs, max_blocks], 0 beyond a row's own blocks
        self.logit_bias: dict[int, tuple[IntArray, npt.NDArray[np.float64]]] = {}
        """Token ids and what is added to their logits, of the rows that have any."""
        self.allowed_tokens: dict[int, npt.NDArray[np.int32]] = {}
        """A bit for each token id that may be drawn, of the rows that limit them."""
        self.bad_words: dict[int, list[list[int]]] = {}
        """Sequences of tokens that must not be completed, of the rows that have any."""
        self.end_token_ids: dict[int, IntArray] = {}
        """Tokens that may not come before min_tokens are out, of the rows that have it."""
        self.pooling: dict[int, PoolingParams] = {}
        """Of the rows that ask for a vector and no token."""
        self.pooled: dict[int, torch.Tensor] = {}
        """What earlier chunks of their prompts add to it."""
        self.adapters: dict[int, LoraAdapter] = {}
        """Of the rows that have one."""
        self.drawn: set[int] = set()
        """The rows whose tokens are drawn at a temperature, and these sets' like: a step does
        nothing of what no row asks for."""
        self.penalized: set[int] = set()
        self.with_logprobs: set[int] = set()
        self.with_prompt_logprobs: set[int] = set()
        self._num_blocks = np.zeros((len(layout.groups), max_num_seqs), np.int64)
        # Where the device is the host, numpy indexes in a tenth of torch's time.
        self._host_token_ids = self.token_ids.numpy() if device.type == "cpu" else None
        self._row_of: dict[int, int] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))

    @property
    def look_at_logits(self) -> bool:
        """Whether any row asks for more of its logits than a token, or changes them."""
        return bool(
            self.logit_bias
            or self.allowed_tokens
            or self.bad_words
            or self.end_token_ids
            or self.penalized
            or self.with_logprobs
            or self.with_prompt_logprobs
            or self.pooling
        )

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._row_of

    def update(self, plan: SchedulerOutput) -> None:
        """Frees dropped rows, takes in new requests, and appends the step's new blocks."""
        for request_id in plan.dropped_request_ids:
            self._drop(request_id)
        for data in plan.new_requests:
            self._add(data)
        for entry in plan.scheduled:
            if entry.new_block_ids is not None:
                self._append_blocks(self._row_of[entry.request_id], entry.new_block_ids)
        self._write_drafts([entry for entry in plan.scheduled if entry.draft_token_ids])

    def find(self, request_ids: Iterable[int]) -> IntArray:
        """The rows of requests [num_requests]."""
        row_of = self._row_of
        return np.array([row_of[request_id] for request_id in request_ids], np.int64)

    def _write_drafts(self, entries: Sequence[ScheduledRequest]) -> None:
        """Puts drafts after the known tokens, where those that turn out wrong are overwritten."""
        if not entries:
            return
        counts = [len(entry.draft_token_ids) for entry in entries]
        ends = [entry.num_computed_tokens + entry.num_tokens for entry in entries]
        places = zip(ends, counts, strict=True)
        self.append(
            self.find(entry.request_id for entry in entries).repeat(counts),
            np.concatenate([np.arange(end - count, end) for end, count in places]),
            to_device(
                np.concatenate([entry.draft_token_ids for entry in entries]), self.token_ids.device
            ),
        )

    def append(self, row_index: IntArray, positions: IntArray, token_ids: torch.Tensor) -> None:
        """Writes one sampled token a row at its position, without waiting for the device."""
        if self._host_token_ids is not None:
            self._host_token_ids[row_index, positions] = token_ids.numpy()
            return
        device = self.token_ids.device
        where = to_device(row_index, device), to_device(positions, device)
        self.token_ids[where] = token_ids.to(torch.int32)

    def tokens_at(self, row_index: IntArray, positions: IntArray) -> torch.Tensor:
        """The token ids int64 at these positions of rows, which broadcast, on the device."""
        if self._host_token_ids is not None:
            return torch.from_numpy(self._host_token_ids[row_index, positions].astype(np.int64))
        device = self.token_ids.device
        return self.token_ids[to_device(row_index, device), to_device(positions, device)].long()

    def _drop(self, request_id: int) -> None:
        row = self._row_of.pop(request_id)
        self.logit_bias.pop(row, None)
        self.allowed_tokens.pop(row, None)
        self.bad_words.pop(row, None)
        self.end_token_ids.pop(row, None)
        self.pooling.pop(row, None)
        self.pooled.pop(row, None)
        self.adapters.pop(row, None)
        for asking in (self.drawn, self.penalized, self.with_logprobs, self.with_prompt_logprobs):
            asking.discard(row)
        for table, num_blocks in zip(self.block_tables, self._num_blocks[:, row], strict=True):
            table[row, :num_blocks] = 0
        self._free.append(row)

    def _add(self, data: NewRequestData) -> None:
        assert data.request_id not in self._row_of, f"request {data.request_id} has a row already"
        row = self._row_of[data.request_id] = self._free.pop()
        tokens = np.array(data.token_ids, np.int32)
        self.token_ids[row, : len(tokens)] = to_device(tokens, self.token_ids.device)
        self.num_prompt_tokens[row] = data.num_prompt_tokens
        self.params[row] = _params_record(data.params)
        self._note(row, data.params)
        if data.params.logit_bias:
            ids, biases = zip(*data.params.logit_bias.items(), strict=True)
            self.logit_bias[row] = np.array(ids, np.int64), np.array(biases, np.float64)
        if data.params.allowed_token_ids is not None:
            self.allowed_tokens[row] = _bits(data.params.allowed_token_ids)
        if data.params.bad_word_token_ids:
            self.bad_words[row] = data.params.bad_word_token_ids
        if data.params.min_tokens > 0:
            ends = {*data.eos_token_ids, *data.params.stop_token_ids}
            self.end_token_ids[row] = np.array(sorted(ends), np.int64)
        if data.lora is not None:
            self.adapters[row] = data.lora
        if data.pooling is not None:
            self.pooling[row] = data.pooling
        self._num_blocks[:, row] = 0
        self._append_blocks(row, data.block_ids)

    def _note(self, row: int, params: SamplingParams) -> None:
        if not params.greedy and params.temperature > 0:
            self.drawn.add(row)
        if (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        ):
            self.penalized.add(row)
        if params.logprobs is not None:
            self.with_logprobs.add(row)
        if params.prompt_logprobs is not None:
            self.with_prompt_logprobs.add(row)

    def _append_blocks(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        for group, ids in enumerate(block_ids):
            start = self._num_blocks[group, row]
            self.block_tables[group][row, start : start + len(ids)] = ids
            self._num_blocks[group, row] = start + len(ids)


def _bits(token_ids: Sequence[int]) -> npt.NDArray[np.int32]:
    """int32 words up to the largest id, with the bits of these ids set."""
    bits = np.zeros(-(-(max(token_ids) + 1) // 32) * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _params_record(params: SamplingParams) -> tuple[Any, ...]:
    """In the order of `_PARAMS`."""
    return (
        params.greedy,
        params.temperature,
        params.min_p,
        max(params.top_k, 0),
        params.top_p,
        (params.seed or 0) & _SEED_MASK,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
        params.min_tokens,
        -1 if params.logprobs is None else params.logprobs,
        -1 if params.prompt_logprobs is None else params.prompt_logprobs,
    )
