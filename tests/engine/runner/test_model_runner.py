"""The runner on tiny models, driven by hand-made plans: what it generates is what transformers
generates, however the steps are cut, and requests do not touch one another."""

import math

import pytest
import torch

from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.runner.sampler import raw_logits
from support.hand_scheduler import HandScheduler
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

KINDS = {
    "Llama": {},
    "Mistral": {"sliding_window": 9},
    "Gemma3": {
        "sliding_window": 9,
        "num_hidden_layers": 6,
        "sliding_window_pattern": 3,
        "initializer_range": 0.2,
    },
}
PROMPTS = [[5, 17, 99, 3, 42, 8, 64, 23, 77, 1, 30, 12, 55], [11] * 7, list(range(100, 129)), [2]]


@pytest.fixture(scope="module", params=sorted(KINDS))
def model(request):
    return tiny_transformers_model(request.param, **KINDS[request.param])


@pytest.fixture(scope="module")
def llama():
    return tiny_transformers_model("Llama")


def make(model, **options):
    real_tokens = options.pop("num_real_tokens", None)
    options = tiny_options(**options)
    weights = model.state_dict().items()
    runner = ModelRunner(options, tiny_config(model), weights, 128, num_real_tokens=real_tokens)
    return runner, HandScheduler(runner.layout, runner.num_blocks, options.cache.block_size)


def step(runner, hand, parts):
    result = runner.execute(hand.plan(parts))
    hand.take(result)
    return {sampled.request_id: sampled for sampled in result.sampled}


def generate_alone(model, prompt, count, **params):
    runner, hand = make(model)
    hand.add(0, prompt, **params)
    for _ in range(count):
        step(runner, hand, [0])
    return hand.finish(0)


def greedy_by_transformers(model, prompt, count):
    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return ids[0, len(prompt) :].tolist()


@torch.inference_mode()
def logprobs_by_transformers(model, tokens):
    return torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)


def test_greedy_tokens_are_those_of_transformers_in_mixed_steps(model):
    runner, hand = make(model)
    for request_id, prompt in enumerate(PROMPTS):
        hand.add(request_id, prompt)
    step(runner, hand, {0: 5, 1: 7})
    step(runner, hand, {2: 10, 0: 3, 1: 1, 3: 1})
    step(runner, hand, {2: 11, 0: 5, 3: 1})
    for _ in range(14):
        step(runner, hand, [3, 2, 0, 1])
    for request_id, prompt in enumerate(PROMPTS):
        generated = hand.finish(request_id)
        assert generated == greedy_by_transformers(model, prompt, len(generated))
        assert len(generated) >= 14


def test_plans_made_before_tokens_are_known_give_the_same(llama):
    runner, hand = make(llama)
    hand.add(0, PROMPTS[0])
    plans = [hand.plan([0]) for _ in range(10)]
    for plan in plans:
        assert all(len(data.token_ids) == len(PROMPTS[0]) for data in plan.new_requests)
        hand.take(runner.execute(plan))
    assert hand.finish(0) == greedy_by_transformers(llama, PROMPTS[0], 10)


SAMPLED = {
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 50,
    "seed": 1234,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.4,
    "presence_penalty": -0.2,
}


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_preempted_and_resumed_requests_go_on_as_if_nothing_was(llama, params):
    runner, hand = make(llama)
    hand.add(0, PROMPTS[0], **params)
    hand.add(1, PROMPTS[1])
    for _ in range(4):
        step(runner, hand, [0, 1])
    hand.preempt(0)
    step(runner, hand, [1])
    step(runner, hand, {0: 9, 1: 1})  # 17 tokens to compute again: two chunks
    for _ in range(5):
        step(runner, hand, [0, 1])
    generated = hand.finish(0)
    assert len(generated) == 9
    assert generated == generate_alone(llama, PROMPTS[0], 9, **params)


def test_rows_are_reused_without_a_trace(llama):
    runner, hand = make(llama)
    heavy = {**SAMPLED, "logit_bias": {7: 50.0}, "min_tokens": 30, "logprobs": 3}
    for round_ in range(5):
        for index in range(8):
            request_id = 100 * round_ + index
            first = index == 0 and round_ > 0
            hand.add(request_id, PROMPTS[1], [11, 12], **({} if first else heavy))
        ids = [100 * round_ + index for index in range(8)]
        for _ in range(3):
            results = step(runner, hand, ids)
        generated = [hand.finish(request_id) for request_id in ids]
        if round_ > 0:
            assert generated[0] == greedy_by_transformers(llama, PROMPTS[1], 3)
            assert results[ids[0]].logprobs is None
        assert all(tokens == [7, 7, 7] for tokens in generated[1:])


def test_a_full_sequence_fits_its_row(llama):
    runner, hand = make(llama)
    hand.add(0, [4] * 127)
    step(runner, hand, {0: 60})
    step(runner, hand, {0: 60})
    step(runner, hand, [0])
    assert hand.finish(0) == greedy_by_transformers(llama, [4] * 127, 1)


def test_logprobs_are_of_the_raw_model(llama):
    runner, hand = make(llama)
    hand.add(0, PROMPTS[0], logprobs=4, **SAMPLED)
    hand.add(1, PROMPTS[1], logprobs=0)
    hand.add(2, PROMPTS[3])
    results = step(runner, hand, [0, 2, 1])
    assert results[2].logprobs is None
    for request_id, top in ((0, 4), (1, 0)):
        (entry,) = results[request_id].logprobs
        (token,) = results[request_id].token_ids
        expected = logprobs_by_transformers(llama, PROMPTS[request_id])[-1]
        values, ids = expected.topk(top)
        assert entry.token_ids == [token, *ids.tolist()]
        assert entry.logprobs == pytest.approx([float(expected[token]), *values.tolist()], rel=1e-4)
        assert entry.rank == int((expected > expected[token]).sum()) + 1


def test_prompt_logprobs_come_in_chunks_of_any_size(llama, monkeypatch):
    monkeypatch.setattr("pagelet.engine.runner.prompt_logprobs._CHUNK_ROWS", 5)
    runner, hand = make(llama)
    rows_of_logits = []
    compute_logits = runner._model.compute_logits
    runner._model.compute_logits = lambda hidden: (
        rows_of_logits.append(len(hidden)) or compute_logits(hidden)
    )
    hand.add(0, PROMPTS[0], prompt_logprobs=2)
    hand.add(1, PROMPTS[2], prompt_logprobs=0)
    hand.add(2, PROMPTS[1])
    entries = {0: [], 1: [], 2: []}
    for parts in ({0: 4, 1: 8, 2: 7}, {1: 20, 0: 8}, {0: 1, 1: 1}, [0, 1]):
        for request_id, sampled in step(runner, hand, parts).items():
            entries[request_id] += sampled.prompt_logprobs or []
    assert entries[2] == []
    for request_id, top in ((0, 2), (1, 0)):
        prompt = hand.requests[request_id].tokens[: hand.requests[request_id].num_prompt_tokens]
        assert len(entries[request_id]) == len(prompt) - 1
        expected = logprobs_by_transformers(llama, prompt)
        for position, entry in enumerate(entries[request_id]):
            values, ids = expected[position].topk(top)
            token = prompt[position + 1]
            assert entry.token_ids == [token, *ids.tolist()]
            chosen = float(expected[position, token])
            assert entry.logprobs == pytest.approx([chosen, *values.tolist()], rel=1e-4)
    assert max(rows_of_logits) <= 5


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_request_with_broken_logits_fails_alone(llama, poison):
    runner, hand = make(llama)
    compute_logits = runner._model.compute_logits
    hand.add(0, PROMPTS[0], logprobs=1, **SAMPLED)
    hand.add(1, PROMPTS[1], logprobs=1)
    hand.add(2, PROMPTS[2], **SAMPLED)

    def poisoned(hidden):
        logits = compute_logits(hidden)
        logits[1] = poison
        return logits

    runner._model.compute_logits = poisoned
    results = step(runner, hand, [0, 1, 2])
    assert results[1].token_ids == []
    assert "not finite" in results[1].error
    assert results[0].error is None
    runner._model.compute_logits = compute_logits
    step(runner, hand, [0, 2])
    for request_id in (0, 2):
        expected = generate_alone(llama, PROMPTS[request_id], 2, **SAMPLED)
        assert hand.finish(request_id) == expected


def test_prompt_logprobs_that_are_broken_fail_the_request(llama):
    runner, hand = make(llama)
    compute_logits = runner._model.compute_logits
    runner._model.compute_logits = lambda hidden: compute_logits(hidden) * math.nan
    hand.add(0, PROMPTS[0], prompt_logprobs=1)
    results = step(runner, hand, {0: 5})
    assert "not finite" in results[0].error


def test_ids_that_only_pad_the_vocabulary_never_appear(llama):
    runner, hand = make(llama, num_real_tokens=30)
    hand.add(0, PROMPTS[0], logprobs=5, prompt_logprobs=1)  # the prompt has some of them
    hand.add(1, PROMPTS[1], temperature=9.0, logit_bias={100: 100.0}, repetition_penalty=1.2)
    for _ in range(20):
        results = step(runner, hand, [0, 1])
        assert max(results[0].logprobs[0].token_ids) < 30
    generated = hand.finish(0) + hand.finish(1)
    assert max(generated) < 30
    assert len(set(generated)) > 10


def test_raw_logits_are_wide_and_masked():
    logits = raw_logits(torch.ones(2, 4, dtype=torch.bfloat16), 3)
    assert logits.dtype == torch.float32
    assert logits.tolist() == [[1.0, 1.0, 1.0, -math.inf]] * 2
