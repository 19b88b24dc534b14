"""Decode steps that are recorded as a whole give the tokens of the general way."""

import random

import numpy as np
import pytest

from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.runner.plain_decode import PlainDecode
from pagelet.engine.step import TokenMasks
from pagelet.kernels.cpu.library import status
from support.hand_scheduler import HandScheduler
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

pytestmark = pytest.mark.skipif(
    status().reason is not None, reason=f"the CPU library is unavailable: {status().reason}"
)

KINDS = {
    "Llama": {},
    "Gemma3": {"sliding_window": 9, "num_hidden_layers": 6},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
DRAWS = [
    {},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.5, "seed": 4, "top_k": 7},
    {"temperature": 1.0, "seed": 5, "top_p": 0.8, "min_p": 0.02},
]
ASKS = [
    {"logprobs": 2},
    {"min_tokens": 4},
    {"logit_bias": {5: 3.0}},
    {"repetition_penalty": 1.4},
    {"presence_penalty": 0.5},
    {"bad_word_token_ids": [[7], [9, 11]]},
    {"allowed_token_ids": [4, 8, 15, 16, 23, 42]},
]


def counting(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The requests of each step that a method of `PlainDecode` ran."""
    counts: list[int] = []
    run = getattr(PlainDecode, name)

    def counted(self, plan, *others):
        counts.append(len(plan.scheduled))
        return run(self, plan, *others)

    monkeypatch.setattr(PlainDecode, name, counted)
    return counts


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests of each step that was run as a whole."""
    return counting(monkeypatch, "run")


@pytest.fixture
def up_to_logits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Likewise, of those that were run up to their logits."""
    return counting(monkeypatch, "compute_logits")


def make(model, real_tokens=None):
    options = tiny_options(num_blocks=128)
    options.model.dtype, options.cache.block_size = "float32", 16  # what the CPU library has
    options.scheduler.max_num_seqs = 16
    runner = ModelRunner(options, tiny_config(model), None, 128, num_real_tokens=real_tokens)
    return runner, HandScheduler(runner.layout, runner.num_blocks, options.cache.block_size)


def random_masks(plan, seed):
    """Of some of the step's requests; each leaves a few tokens, one of which nobody forbids."""
    rng = np.random.default_rng([seed, plan.step])
    plan.constrained = [i for i, e in enumerate(plan.scheduled) if e.samples and rng.random() < 0.7]
    bits = np.zeros((len(plan.constrained), 96), np.uint8)
    for row in bits:
        row[42] = 1
        row[rng.choice(90, 5, replace=False)] = 1
    words = np.packbits(bits, axis=-1, bitorder="little")
    return TokenMasks(words.tobytes())


def generate(model, requests, seed, real_tokens=None, masked=False):
    """What each request gets, in random steps of some of them."""
    runner, hand = make(model, real_tokens)
    rng = random.Random(seed)
    for request_id, params in enumerate(requests):
        prompt = [rng.randrange(100) for _ in range(rng.randint(1, 5))]
        hand.add(request_id, prompt, eos_token_ids=[1], **params)
    for _ in range(30):
        ids = rng.sample(range(len(requests)), rng.randint(1, len(requests)))
        plan = hand.plan(ids)
        masks = random_masks(plan, seed) if masked else None
        hand.take(runner.execute(plan, lambda masks=masks: masks))
    return [hand.finish(request_id) for request_id in range(len(requests))]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("asks", [[], ASKS], ids=["plain", "with-others"])
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_tokens_are_those_of_the_general_way(
    kind, asks, masked, recorded, up_to_logits, monkeypatch
):
    model = tiny_transformers_model(kind, **KINDS[kind])
    requests = [*DRAWS, *asks]
    got = generate(model, requests, seed=1, real_tokens=90, masked=masked)
    assert len(up_to_logits if asks else recorded) > 10
    monkeypatch.setattr(PlainDecode, "takes", lambda self, plan: False)
    recorded.clear()
    up_to_logits.clear()
    assert got == generate(model, requests, seed=1, real_tokens=90, masked=masked)
    assert recorded == up_to_logits == []
    assert max(map(max, got)) < 90


@pytest.mark.parametrize("params", ASKS, ids=lambda params: next(iter(params)))
def test_steps_that_look_at_logits_are_recorded_up_to_these(params, recorded, up_to_logits):
    generate(tiny_transformers_model("Llama"), [{}, params], seed=2)
    assert not recorded
    assert up_to_logits


def test_steps_of_prompts_whose_logprobs_are_asked_for_go_the_general_way(recorded, up_to_logits):
    generate(tiny_transformers_model("Llama"), [{}, {"prompt_logprobs": 0}], seed=2)
    assert recorded == up_to_logits == []


def test_requests_that_ask_for_nothing_more_go_the_short_way_again(recorded):
    runner, hand = make(tiny_transformers_model("Llama"))
    hand.add(0, [5, 6, 7])
    hand.add(1, [8, 9], logprobs=1)
    for _ in range(3):
        hand.take(runner.execute(hand.plan([0, 1])))
    hand.finish(1)
    assert recorded == []
    hand.take(runner.execute(hand.plan([0])))
    hand.take(runner.execute(hand.plan([0])))
    assert recorded == [1, 1]
