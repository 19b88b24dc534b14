"""An executor without a model that checks the KV cache's bookkeeping exactly.

It keeps, for every slot of every KV group, the token whose K and V would be there. To sample it
reads the request's whole context back through the block tables, asserts that it is the request's
own history, and derives the next token from it. A wrong block, a block reused too early, one
published before it was written, or a token computed twice or never cannot go unseen.
"""

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pagelet.engine.kv.spec import KVLayout, make_layout
from pagelet.engine.step import (
    NewRequestData,
    RunnerInfo,
    RunnerOutput,
    SampledToken,
    SchedulerOutput,
    TokenMasks,
)

VOCAB = 97


def next_token(context: list[int]) -> int:
    """A token that depends on all tokens before it."""
    digest = hashlib.blake2b(repr(context).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def repeating_token(context: list[int]) -> int:
    """A token that mostly depends on the last one alone, so that what is generated repeats."""
    return next_token(context if len(context) % 7 == 0 else context[-1:])


def generate_alone(
    prompt: list[int], count: int, token: Callable[[list[int]], int] = next_token
) -> list[int]:
    """The answer of a request that nothing else runs beside."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(token(tokens))
    return tokens[len(prompt) :]


class KVOracleExecutor:
    """Implements `Executor`."""

    def __init__(
        self,
        windows: list[int | None],
        num_blocks: int,
        block_size: int,
        token: Callable[[list[int]], int] = next_token,
    ) -> None:
        self.info = RunnerInfo("oracle", "none", "none", "none", "none")
        self.layout: KVLayout = make_layout(windows, page_bytes=1)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.slots: list[dict[int, Any]] = [{} for _ in self.layout.groups]
        self.rows: dict[int, tuple[list[int], list[list[int]]]] = {}
        self.num_sampled = 0
        self._token = token

    def execute(
        self, plan: SchedulerOutput, masks: Future[TokenMasks] | None = None
    ) -> Future[RunnerOutput]:
        for request_id in plan.dropped_request_ids:
            del self.rows[request_id]
        new = {data.request_id: data for data in plan.new_requests}
        assert plan.num_tokens == sum(entry.num_tokens for entry in plan.scheduled)
        assert len({entry.request_id for entry in plan.scheduled}) == len(plan.scheduled)
        results = []
        self._copy([pair for data in plan.new_requests for pair in data.copied_blocks])
        # All writes of a step come before its reads, as in one forward pass over the batch.
        for entry in plan.scheduled:
            if entry.request_id in new:
                data: NewRequestData = new.pop(entry.request_id)
                assert entry.request_id not in self.rows
                self.rows[entry.request_id] = (list(data.token_ids), data.block_ids)
            elif entry.new_block_ids is not None:
                for table, gained in zip(
                    self.rows[entry.request_id][1], entry.new_block_ids, strict=True
                ):
                    table += gained
            tokens, tables = self.rows[entry.request_id]
            end = entry.num_computed_tokens + entry.num_tokens
            assert not entry.draft_token_ids or entry.samples
            assert entry.num_tokens > len(entry.draft_token_ids)
            tokens += entry.draft_token_ids
            assert end <= len(tokens)
            assert entry.samples == (end == len(tokens))
            for table, slots in zip(tables, self.slots, strict=True):
                for position in range(entry.num_computed_tokens, end):
                    slots[self._slot(table, position)] = (position, tokens[position])
        assert not new, "a new request must be scheduled"
        for entry in plan.scheduled:
            tokens, tables = self.rows[entry.request_id]
            end = entry.num_computed_tokens + entry.num_tokens
            for group, table, slots in zip(self.layout.groups, tables, self.slots, strict=True):
                window = group.sliding_window
                first = 0 if window is None else max(0, entry.num_computed_tokens - window + 1)
                for position in range(first, end):
                    held = slots.get(self._slot(table, position))
                    assert held == (position, tokens[position]), (entry, position, held)
            result = SampledToken(entry.request_id, [])
            if entry.samples:
                self._sample(tokens, entry.draft_token_ids, result)
                if entry.num_proposals:
                    result.draft_token_ids = self._propose(tokens, entry.num_proposals, tables)
            results.append(result)
        future: Future[RunnerOutput] = Future()
        future.set_result(RunnerOutput(plan.step, results))
        return future

    def _sample(self, tokens: list[int], drafts: list[int], result: SampledToken) -> None:
        del tokens[len(tokens) - len(drafts) :]
        for draft in [*drafts, None]:
            tokens.append(self._token(tokens))
            result.token_ids.append(tokens[-1])
            self.num_sampled += 1
            if tokens[-1] != draft:
                return

    def _propose(self, tokens: list[int], count: int, tables: list[list[int]]) -> list[int]:
        """Right guesses, but for one that may be among them; and draft KV written as it would be
        in the blocks of the last ones but the newest."""
        proposed = generate_alone(tokens, count, self._token)
        for position in range(len(tokens), len(tokens) + count - 1):
            for table, slots in zip(tables, self.slots, strict=True):
                slots.setdefault(self._slot(table, position), None)
        wrong = next_token(tokens) % (count + 2)
        if wrong < count:
            proposed[wrong] = (proposed[wrong] + 1) % VOCAB
        return proposed

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        size = self.block_size
        for slots in self.slots:
            read = [
                [slots.get(source * size + offset) for offset in range(size)] for source, _ in pairs
            ]
            for (_, target), held in zip(pairs, read, strict=True):
                slots.update((target * size + offset, each) for offset, each in enumerate(held))

    def _slot(self, table: list[int], position: int) -> int:
        block = table[position // self.block_size]
        assert 0 < block < self.num_blocks, "the null block holds no live token"
        return block * self.block_size + position % self.block_size

    def close(self) -> None:
        pass
