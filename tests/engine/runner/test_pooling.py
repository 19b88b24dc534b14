"""Vectors of prompts are those of transformers' hidden states, however the prompts are cut."""

import dataclasses

import numpy as np
import pytest
import torch
import transformers

from pagelet.engine.model_config import PoolingConfig
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.protocol.pooling import PoolingParams
from support.hand_scheduler import HandScheduler
from support.tiny_models import TINY, tiny_config, tiny_options, tiny_transformers_model

PROMPTS = [[5, 17, 99, 3, 42, 8, 64, 23, 77, 1, 30, 12, 55], [11] * 7, list(range(100, 129)), [2]]
KINDS = {"Llama": {}, "Qwen3": {}, "Gemma3": {"sliding_window": 9}}


def make(model, config):
    options = tiny_options()
    runner = ModelRunner(options, config, model.state_dict().items(), 128)
    return runner, HandScheduler(runner.layout, runner.num_blocks, options.cache.block_size)


def step(runner, hand, parts):
    result = runner.execute(hand.plan(parts))
    hand.take(result)
    return {s.request_id: np.frombuffer(s.pooled, np.float32) for s in result.sampled if s.pooled}


def in_chunks(runner, hand):
    """The vectors of the prompts, cut in chunks that share their steps."""
    found = step(runner, hand, {0: 5, 1: 3})
    assert not found
    found |= step(runner, hand, {2: 20, 0: 8, 3: 1})
    return found | step(runner, hand, [1, 2])


@torch.inference_mode()
def expected_vectors(model, pooling):
    for prompt in PROMPTS:
        states = model.model(torch.tensor([prompt])).last_hidden_state[0]
        yield {"last": states[-1], "mean": states.mean(0), "cls": states[0]}[pooling]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_vectors_are_pooled_hidden_states(kind, pooling):
    model = tiny_transformers_model(kind, **KINDS[kind])
    config = dataclasses.replace(
        tiny_config(model), head="none", pooling=PoolingConfig("embed", pooling)
    )
    runner, hand = make(model, config)
    for number, prompt in enumerate(PROMPTS):
        hand.add(number, prompt, pooling=PoolingParams(pooling))
    found = in_chunks(runner, hand)
    for number, vector in enumerate(expected_vectors(model, pooling)):
        np.testing.assert_allclose(found[number], vector.numpy(), rtol=1e-5, atol=1e-5)


def test_a_preempted_mean_begins_anew():
    model = tiny_transformers_model("Llama")
    config = dataclasses.replace(
        tiny_config(model), head="none", pooling=PoolingConfig("embed", "mean")
    )
    runner, hand = make(model, config)
    hand.add(0, PROMPTS[0], pooling=PoolingParams("mean"))
    step(runner, hand, {0: 5})
    hand.preempt(0)
    step(runner, hand, {0: 3})
    vector = step(runner, hand, [0])[0]
    expected = next(expected_vectors(model, "mean"))
    np.testing.assert_allclose(vector, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_scores_are_those_of_a_sequence_classifier():
    torch.manual_seed(1)
    settings = {**TINY, "num_labels": 3, "pad_token_id": 0}
    classifier = transformers.Qwen3ForSequenceClassification(transformers.Qwen3Config(**settings))
    classifier = classifier.double().eval()
    config = tiny_config(classifier)
    assert (config.head, config.num_labels) == ("score", 3)
    runner, hand = make(classifier, config)
    for number, prompt in enumerate(PROMPTS):
        hand.add(number, prompt, pooling=PoolingParams("last"))
    found = in_chunks(runner, hand)
    for number, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            logits = classifier(torch.tensor([prompt])).logits[0]
        np.testing.assert_allclose(found[number], logits.numpy(), rtol=1e-5, atol=1e-5)


def test_logits_of_two_tokens_beside_requests_that_generate():
    model = tiny_transformers_model("Llama")
    runner, hand = make(model, tiny_config(model))
    hand.add(0, PROMPTS[0], pooling=PoolingParams("last", [7, 3]))
    hand.add(1, PROMPTS[0])
    result = runner.execute(hand.plan([0, 1]))
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPTS[0]])).logits[0, -1]
    vector = np.frombuffer(result.sampled[0].pooled, np.float32)
    np.testing.assert_allclose(vector, logits[[7, 3]].numpy(), rtol=1e-5, atol=1e-5)
    assert result.sampled[0].token_ids == []
    assert result.sampled[1].token_ids == [int(logits.argmax())]
