"""Decode steps from graphs: the logic around them, on a fake that records and replays."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.layers.context import AttentionMetadata
from pagelet.engine.runner.graphs import GraphForward, choose_capture_sizes, make_graph_backend
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.protocol.config import CudaOptions
from support.fake_graphs import FakeGraphs
from support.hand_scheduler import HandScheduler
from support.models import randomize
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

CPU = torch.device("cpu")
MOE: dict[str, Any] = {"num_experts_per_tok": 2}
KINDS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 9},
    "Mixtral": MOE | {"num_local_experts": 4},
    "Qwen2": {},
    "Qwen3": {},
    "Qwen3Moe": MOE | {"num_experts": 4, "moe_intermediate_size": 16},
    "Gemma3": {
        "sliding_window": 9,
        "num_hidden_layers": 6,
        "sliding_window_pattern": 3,
    },
}
PROMPTS = [[5, 17, 99, 3, 42, 8, 64, 23, 77, 1, 30, 12, 55], [11] * 7, list(range(100, 129)), [2]]


def make(model: Any, graphs: FakeGraphs | None) -> tuple[ModelRunner, HandScheduler]:
    options = tiny_options()
    options.cuda.cudagraph_capture_sizes = [1, 2, 4, 8]
    runner = ModelRunner(options, tiny_config(model), None, 128, graphs=graphs)
    randomize(runner._model)
    return runner, HandScheduler(runner.layout, runner.num_blocks, 8)


def step(runner: ModelRunner, hand: HandScheduler, parts: Any) -> None:
    hand.take(runner.execute(hand.plan(parts)))


def answers(runner: ModelRunner, hand: HandScheduler) -> list[list[int]]:
    """Of requests that come, go, are preempted, decode together and beside a prefill."""
    hand.add(0, PROMPTS[0])
    hand.add(1, PROMPTS[1], temperature=0.8, seed=5, top_p=0.9)
    step(runner, hand, [0, 1])
    for _ in range(4):
        step(runner, hand, [1, 0])  # 2
    hand.add(2, PROMPTS[2])
    step(runner, hand, {2: 11, 0: 1})
    step(runner, hand, [2, 1])
    hand.add(3, PROMPTS[3])
    step(runner, hand, [3])  # 1: a prompt of one token is as good as a decode
    for _ in range(3):
        step(runner, hand, [2, 0, 3])  # 4, with one to spare
    hand.preempt(0)
    first = hand.finish(1)
    step(runner, hand, [3])  # 1
    step(runner, hand, [0, 2])
    for _ in range(3):
        step(runner, hand, [0, 3, 2])  # 4
    return [first, *(hand.finish(request) for request in (0, 2, 3))]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_tokens_are_those_of_steps_without_graphs(kind: str) -> None:
    model = tiny_transformers_model(kind, **KINDS[kind])
    graphs = FakeGraphs()
    got = answers(*make(model, graphs))
    assert got == answers(*make(model, None))
    assert len({token for answer in got for token in answer}) > 3
    eight, four, two, one = range(4)  # captured from the largest down
    assert graphs.replays == [two] * 4 + [one] + [four] * 3 + [one] + [four] * 3
    assert eight not in graphs.replays


def test_a_few_tokens_of_a_request_are_rows_of_a_graph() -> None:
    """As drafts are; beside decodes, across blocks, and within a sliding window."""
    model = tiny_transformers_model("Mistral", sliding_window=9)
    graphs = FakeGraphs()
    found = []
    for use in (graphs, None):
        runner, hand = make(model, use)
        hand.add(0, PROMPTS[0])
        hand.add(1, PROMPTS[1])
        for parts in ({0: 5}, {0: 3, 1: 4}, {1: 3, 0: 5}, [0, 1], [1, 0]):
            step(runner, hand, parts)
        found.append([hand.finish(request) for request in (0, 1)])
    assert found[0] == found[1]
    eight, two = 0, 2
    assert graphs.replays == [eight] * 3 + [two] * 2


def test_padding_writes_to_the_null_block_alone() -> None:
    graphs = FakeGraphs()
    runner, hand = make(tiny_transformers_model("Llama"), graphs)
    for request in range(3):
        hand.add(request, PROMPTS[0])
    step(runner, hand, range(3))
    bindings = runner._kv.values() if isinstance(runner._kv, dict) else runner._kv
    caches = [binding.cache for binding in bindings]
    for cache in caches:
        cache[:, 0] = torch.nan  # what nobody may read
    before = [cache.clone() for cache in caches]
    step(runner, hand, range(3))
    assert graphs.replays == [1], "three requests in the graph of four"
    own = {(hand.requests[r].tables[0][13 // 8], 13 % 8) for r in range(3)}
    for cache, old in zip(caches, before, strict=True):
        same = torch.eq(cache, old) | (cache.isnan() & old.isnan())
        changed = (~same).any(dim=(0, 2, 4)).nonzero().tolist()  # [block, slot]
        assert {(block, slot) for block, slot in changed} == own | {(0, 0)}
    assert all(0 <= token < 131 for r in range(3) for token in hand.requests[r].tokens)


@given(st.integers(1, 2000))
def test_the_ladder_has_a_near_size_for_every_batch(max_num_seqs: int) -> None:
    sizes = choose_capture_sizes(None, max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == min(max_num_seqs, 512)
    for batch in range(1, sizes[-1] + 1):
        padding = next(size for size in sizes if size >= batch) - batch
        assert padding < (8 if batch <= 248 else 16)


def test_sizes_that_were_asked_for_are_cut_to_what_can_run() -> None:
    assert choose_capture_sizes([64, 3, 3, 100], 50) == [3, 50]
    assert choose_capture_sizes([3], 50) == [3]


BLOCK, LENGTH = 4, 16
STEPS = st.lists(st.lists(st.integers(1, LENGTH), min_size=1, max_size=9), min_size=1, max_size=6)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4))
def test_each_token_has_its_requests_blocks_and_its_own_length(lens: list[tuple[int, int]]) -> None:
    """Requests of (tokens, tokens before them)."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(
        input_ids: torch.Tensor, positions: torch.Tensor, attention: list[AttentionMetadata]
    ) -> torch.Tensor:
        assert attention[0].max_query_len == 1
        seen.append((attention[0].seq_lens.clone(), attention[0].block_table.clone()))
        return input_ids[:, None].double()

    sizes = {"num_groups": 1, "block_size": BLOCK, "max_model_len": LENGTH, "device": CPU}
    graphed = GraphForward(forward, FakeGraphs(), [32], **sizes)
    query_lens = [count for count, _ in lens]
    seq_lens = [count + first for count, first in lens]
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    positions = [first + i for count, first in lens for i in range(count)]
    table = torch.arange(1, 4 * len(lens) + 1, dtype=torch.int32).view(len(lens), 4)
    attention = AttentionMetadata(
        starts,
        torch.tensor(seq_lens, dtype=torch.int32),
        table,
        torch.arange(len(positions)),
        max(query_lens),
        max(seq_lens),
        query_lens,
        seq_lens,
    )
    ids = torch.arange(len(positions))
    assert torch.equal(graphed(ids, torch.tensor(positions), [attention])[:, 0], ids.double())
    found_lens, found_table = seen[-1]
    owners = [request for request, (count, _) in enumerate(lens) for _ in range(count)]
    count = len(positions)
    assert found_lens.tolist() == [position + 1 for position in positions] + [1] * (32 - count)
    assert torch.equal(found_table[:count], table[owners])


@settings(max_examples=50)
@given(steps=STEPS, seed=st.integers(0, 1 << 30))
def test_a_row_sees_its_own_inputs_whatever_was_there_before(
    steps: list[list[int]], seed: int
) -> None:
    def forward(
        input_ids: torch.Tensor, positions: torch.Tensor, attention: list[AttentionMetadata]
    ) -> torch.Tensor:
        """What attention may read of a row, by the tensors alone."""
        columns = [input_ids, positions]
        for meta in attention:
            assert meta.query_start_loc.tolist() == list(range(len(input_ids) + 1))
            blocks = torch.arange(meta.block_table.shape[1]) * BLOCK < meta.seq_lens[:, None]
            columns += [meta.seq_lens, meta.slot_mapping]
            columns += [(meta.block_table * blocks).sum(dim=1)]
        return torch.stack(columns, dim=1).double()

    graphs = FakeGraphs()
    graphed = GraphForward(
        forward,
        graphs,
        [1, 3, 7],
        num_groups=2,
        block_size=BLOCK,
        max_model_len=LENGTH,
        device=CPU,
    )
    generator = torch.Generator().manual_seed(seed)
    for seq_lens in steps:
        count = len(seq_lens)
        tensors = [graphed._input_ids, graphed._positions, graphed._seq_lens, graphed._hidden]
        tensors += [*graphed._block_tables, *graphed._slot_mappings]
        before = [tensor.clone() for tensor in tensors]
        width = -(-max(seq_lens) // BLOCK)
        attention = [
            AttentionMetadata(
                torch.arange(count + 1, dtype=torch.int32),
                torch.tensor(seq_lens, dtype=torch.int32),
                torch.randint(1, 99, (count, width), generator=generator, dtype=torch.int32),
                torch.randint(1, 99, (count,), generator=generator),
                1,
                max(seq_lens),
                [1] * count,
                seq_lens,
            )
            for _ in range(2)
        ]
        ids = torch.randint(0, 99, (count,), generator=generator)
        positions = torch.tensor(seq_lens) - 1
        assert torch.equal(graphed(ids, positions, attention), forward(ids, positions, attention))
        size = next((size for size in (1, 3, 7) if size >= count), 0)
        for tensor, old in zip(tensors, before, strict=True):
            assert torch.equal(tensor[size:], old[size:]), "a write beyond the graph's rows"
    replayed = [count for count in map(len, steps) if count <= 7]
    assert [(7, 3, 1)[number] for number in graphs.replays] == [
        next(size for size in (1, 3, 7) if size >= count) for count in replayed
    ]


def test_what_cannot_be_captured_is_told_with_what_to_do() -> None:
    class Refusing:
        def capture(self, function: Any) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(ConfigurationError, match=r"step of 8 requests .*--enforce-eager"):
        make(tiny_transformers_model("Llama"), Refusing())  # type: ignore[arg-type]


def test_only_a_gpu_that_may_has_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = object()
    monkeypatch.setattr("pagelet.engine.runner.graphs.CudaGraphs", lambda device: made)
    cuda = torch.device("cuda")
    monkeypatch.delenv("PAGELET_KERNELS", raising=False)
    assert make_graph_backend(CudaOptions(), CPU) is None
    assert make_graph_backend(CudaOptions(enforce_eager=True), cuda) is None
    assert make_graph_backend(CudaOptions(), cuda) is made
    monkeypatch.setenv("PAGELET_KERNELS", "reference")
    assert make_graph_backend(CudaOptions(), cuda) is None
