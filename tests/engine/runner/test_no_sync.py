"""Within a step the host never waits for the GPU, whatever its requests ask for."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from pagelet.engine.kv.spec import make_layout
from pagelet.engine.layers.context import AttentionMetadata
from pagelet.engine.runner import logits as logits_module
from pagelet.engine.runner import logprobs as logprobs_module
from pagelet.engine.runner import sampler as sampler_module
from pagelet.engine.runner.device import to_device
from pagelet.engine.runner.graphs import GraphForward
from pagelet.engine.runner.inputs import build_inputs
from pagelet.engine.runner.kv_pages import PageCopier, PageShape
from pagelet.engine.runner.prompt_logprobs import prompt_logprobs
from pagelet.engine.runner.sampler import raw_logits, sample_tokens
from pagelet.engine.runner.state import RequestRows
from pagelet.engine.step import NewRequestData, ScheduledRequest, SchedulerOutput
from pagelet.kernels.lora import AdapterRows
from pagelet.kernels.sample import batched
from pagelet.kernels.token_mask import torch_native
from pagelet.kernels.top_logprobs.reference import top_logprobs
from pagelet.protocol.sampling import SamplingParams
from support.fake_graphs import FakeGraphs
from support.sync_watch import GPU, SyncWatch, fake_gpu

VOCAB = 50
EVERYTHING = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=5,
    min_p=0.1,
    seed=3,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.1,
    logit_bias={4: 2.0},
    min_tokens=9,
    stop_token_ids=[5],
    logprobs=3,
    prompt_logprobs=2,
    allowed_token_ids=[3, 4, 7],
    bad_word_token_ids=[[7], [3, 4]],
)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncWatch]:
    """The kernels of torch's operations, which fake tensors can go through."""
    monkeypatch.setattr(sampler_module, "sample", batched.sample)
    monkeypatch.setattr(sampler_module, "mask_tokens", torch_native.mask_tokens)
    monkeypatch.setattr(logits_module, "mask_tokens", torch_native.mask_tokens)
    monkeypatch.setattr(logprobs_module, "top_logprobs", top_logprobs)
    with fake_gpu(), SyncWatch() as watch:
        yield watch


def masked() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([1]), torch.ones(1, 2, dtype=torch.int32)


def test_a_step_with_all_that_requests_can_ask_for(watch: SyncWatch) -> None:
    rows = RequestRows(8, 64, 4, make_layout([None, 8], 1), GPU)
    graphed = GraphForward(
        lambda ids, positions, attention: torch.empty(len(ids), 16, device=GPU),
        FakeGraphs(),
        [1, 4],
        num_groups=2,
        block_size=4,
        max_model_len=64,
        device=GPU,
    )
    watch.waits.clear()  # those of the start-up
    tokens = list(range(9))
    blocks = [[1, 2, 3], [4, 5, 6]]
    new = [
        NewRequestData(0, tokens, 8, EVERYTHING, [2], blocks),
        NewRequestData(1, tokens, 6, SamplingParams(temperature=0.0), [2], blocks),
    ]
    for parts in ([(0, 9), (0, 9)], [(8, 1), (8, 1)]):
        entries = [
            ScheduledRequest(request, computed, count, True)
            for request, (computed, count) in enumerate(parts)
        ]
        plan = SchedulerOutput(1, new, entries, [], sum(count for _, count in parts))
        new = []
        rows.update(plan)
        inputs = build_inputs(plan, rows)
        hidden = graphed(inputs.input_ids, inputs.positions, inputs.attention)

        def compute_logits(hidden: torch.Tensor) -> torch.Tensor:
            return raw_logits(torch.empty(len(hidden), VOCAB, device=GPU), VOCAB - 3)

        found = prompt_logprobs(hidden, inputs, rows, compute_logits)
        assert found.requests == [0]
        logits = compute_logits(hidden[to_device(np.array([0, 1]), GPU)])
        sampled = sample_tokens(logits, rows, inputs.rows, inputs.seq_lens, masked)
        rows.append(inputs.rows, inputs.seq_lens, sampled.token_ids)
        assert sampled.token_ids.device == GPU
    assert watch.waits == []


def test_a_graph_of_requests_with_some_tokens_each(watch: SyncWatch) -> None:
    sizes = {"num_groups": 1, "block_size": 4, "max_model_len": 64, "device": GPU}
    graphed = GraphForward(
        lambda ids, positions, attention: torch.empty(len(ids), 16, device=GPU),
        FakeGraphs(),
        [8],
        **sizes,
    )
    watch.waits.clear()  # those of the start-up
    ints = torch.empty(3, dtype=torch.int32, device=GPU)
    table = torch.empty(2, 3, dtype=torch.int32, device=GPU)
    tokens = torch.empty(5, dtype=torch.int64, device=GPU)
    meta = AttentionMetadata(ints, ints[:2], table, tokens, 3, 9, [3, 2], [9, 4])
    assert graphed(tokens, tokens, [meta]).shape == (5, 16)
    assert watch.waits == []


def test_adapters_of_a_step(watch: SyncWatch) -> None:
    rows = AdapterRows(1000, GPU)
    watch.waits.clear()  # those of the start-up
    rows.set([(2, torch.arange(3)), (0, torch.arange(3, 700))])
    rows.set([])
    assert watch.waits == []


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "to the host": lambda x: x.cpu(),
    "an uploaded constant": lambda x: torch.ones(3).to(GPU),
    "pageable memory": lambda x: torch.ones(3).to(GPU, non_blocking=True),
    "a written copy": lambda x: x.copy_(torch.ones(4, 5)),
}


@pytest.mark.parametrize("pairs", [[(1, 2)], [(1, 2), (3, 4)]], ids=["one", "several"])
def test_copies_of_blocks(pairs: list[tuple[int, int]], watch: SyncWatch) -> None:
    shape = PageShape(num_heads=2, block_size=4, token_size=8, dtype=torch.float8_e4m3fn)
    copier = PageCopier(shape.allocate(make_layout([None], 1), range(1), 6, GPU))
    watch.waits.clear()
    copier.copy(pairs)
    assert watch.waits == []


@pytest.mark.parametrize("what", sorted(WAITS))
def test_the_watch_sees_copies_that_wait(what: str, watch: SyncWatch) -> None:
    WAITS[what](torch.empty(4, 5, device=GPU))
    assert len(watch.waits) == 1


def test_the_watch_sees_values_that_are_asked_for(watch: SyncWatch) -> None:
    with pytest.raises(DataDependentOutputException):
        torch.empty(1, device=GPU).item()
