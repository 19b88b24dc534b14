"""Runs models over a paged KV cache as the engine does, with everything unused poisoned.

Every slot that belongs to no context is NaN, blocks are handed out in random order, and blocks that
fall out of a sliding window are given back at once, so that reading anything that a request does
not own shows in its logits.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

import torch

from pagelet.engine.kv.spec import make_layout
from pagelet.engine.layers.context import AttentionMetadata, ForwardContext, KVBinding
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.runner.cpu_forward import CpuForward


@dataclasses.dataclass
class _Sequence:
    tokens: list[int]
    computed: int
    tables: list[list[int]]  # one a KV group


class PagedHarness:
    """A KV cache and the sequences in it."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        rng: random.Random,
        block_size: int = 4,
        num_blocks: int = 400,
        num_kv_heads: int | None = None,
    ) -> None:
        windows = [config.window(layer) for layer in range(config.num_layers)]
        self.layout = make_layout(windows, page_bytes=1)
        self.block_size = block_size
        heads = config.num_kv_heads if num_kv_heads is None else num_kv_heads
        shape = (2, num_blocks, heads, block_size, config.head_dim)
        self.caches = [
            torch.full(shape, float("nan"), dtype=dtype) for _ in range(self.layout.num_slots)
        ]
        self.free = list(range(1, num_blocks))
        rng.shuffle(self.free)
        self.sequences: list[_Sequence] = []
        places = {layer: self.layout.place(layer) for layer in range(config.num_layers)}
        self.bindings = {
            layer: KVBinding(self.caches[slot], group) for layer, (group, slot) in places.items()
        }

    def add(self, tokens: Sequence[int]) -> int:
        """Registers a sequence whose tokens are all known; returns its index."""
        self.sequences.append(_Sequence(list(tokens), 0, [[] for _ in self.layout.groups]))
        return len(self.sequences) - 1

    def remaining(self, index: int) -> int:
        """Tokens of a sequence that no step has computed."""
        sequence = self.sequences[index]
        return len(sequence.tokens) - sequence.computed

    def prepare(
        self, plan: Sequence[tuple[int, int]]
    ) -> tuple[torch.Tensor, torch.Tensor, ForwardContext]:
        """Input ids, positions and context of a step that computes (sequence, number of tokens),
        with the blocks for it; counts the tokens as computed."""
        ids: list[int] = []
        positions: list[int] = []
        for index, count in plan:
            sequence = self.sequences[index]
            end = sequence.computed + count
            ids += sequence.tokens[sequence.computed : end]
            positions += range(sequence.computed, end)
            for group, table in zip(self.layout.groups, sequence.tables, strict=True):
                while len(table) * self.block_size < end:
                    table.append(self.free.pop())
                if group.sliding_window is not None:
                    self._give_back(table, sequence.computed + 1 - group.sliding_window)
        metadata = [self._metadata(plan, group) for group in range(len(self.layout.groups))]
        for index, count in plan:
            self.sequences[index].computed += count
        return torch.tensor(ids), torch.tensor(positions), ForwardContext(metadata, self.bindings)

    def _give_back(self, table: list[int], first_needed: int) -> None:
        """Frees and poisons the blocks that end before a position; the null block takes their
        place."""
        for i in range(max(0, first_needed) // self.block_size):
            if table[i]:
                for cache in self.caches:
                    cache[:, table[i]] = float("nan")
                self.free.insert(0, table[i])
                table[i] = 0

    def _metadata(self, plan: Sequence[tuple[int, int]], group: int) -> AttentionMetadata:
        tables = [self.sequences[index].tables[group] for index, _ in plan]
        width = max(map(len, tables)) + 2
        query_lens = [count for _, count in plan]
        seq_lens = [self.sequences[index].computed + count for index, count in plan]
        slots = [
            table[position // self.block_size] * self.block_size + position % self.block_size
            for table, query_len, seq_len in zip(tables, query_lens, seq_lens, strict=True)
            for position in range(seq_len - query_len, seq_len)
        ]
        starts = [sum(query_lens[:i]) for i in range(len(plan) + 1)]
        padded = [table + [0] * (width - len(table)) for table in tables]
        return AttentionMetadata(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            block_table=torch.tensor(padded, dtype=torch.int32),
            slot_mapping=torch.tensor(slots),
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
            query_lens_cpu=query_lens,
            seq_lens_cpu=seq_lens,
        )


def random_plan(harness: PagedHarness, rng: random.Random) -> list[tuple[int, int]]:
    """Some of the unfinished sequences in random order, with a random number of tokens each,
    often one (a decode)."""
    unfinished = [i for i in range(len(harness.sequences)) if harness.remaining(i)]
    chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
    return [
        (i, 1 if rng.random() < 0.5 else rng.randint(1, min(9, harness.remaining(i))))
        for i in chosen
    ]


Forward = Callable[[torch.Tensor, torch.Tensor, ForwardContext], torch.Tensor]


def recorded_forward(model: CausalLM, harness: PagedHarness) -> Forward:
    """A model that was built with a packing on the CPU library, over the harness's cache."""
    forward = CpuForward(
        model,
        harness.bindings,
        max_tokens=64,
        max_requests=len(harness.sequences),
        max_model_len=128,
        num_groups=len(harness.layout.groups),
    )
    return lambda ids, positions, ctx: forward(ids, positions, list(ctx.attention))


def compute_all(harness: PagedHarness, rng: random.Random, compute: Forward) -> list[torch.Tensor]:
    """Runs all sequences in random steps; what `compute` gives for every token of each."""
    rows: list[list[torch.Tensor]] = [[] for _ in harness.sequences]
    while any(harness.remaining(i) for i in range(len(rows))):
        plan = random_plan(harness, rng)
        computed = compute(*harness.prepare(plan))
        for (index, _), part in zip(
            plan, computed.split([count for _, count in plan]), strict=True
        ):
            rows[index].append(part)
    return [torch.cat(parts) for parts in rows]


def logits_of_all(
    model: CausalLM, harness: PagedHarness, rng: random.Random, forward: Forward | None = None
) -> list[torch.Tensor]:
    """Computes all sequences in random steps; the logits of every token of each."""
    compute = forward or model.forward
    return compute_all(harness, rng, lambda *step: model.compute_logits(compute(*step)))
