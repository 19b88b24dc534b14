"""Sampling as the runner does it, against a slow reference of one row, and in any batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.engine.kv.spec import make_layout
from pagelet.engine.runner import logits as logits_module
from pagelet.engine.runner import logprobs as logprobs_module
from pagelet.engine.runner import sampler as sampler_module
from pagelet.engine.runner.sampler import sample_tokens
from pagelet.engine.runner.state import RequestRows
from pagelet.engine.step import NewRequestData, SchedulerOutput
from pagelet.kernels.sample import batched
from pagelet.kernels.sample.random import uniforms
from pagelet.kernels.sample.reference import sample as reference_sample
from pagelet.kernels.top_logprobs.reference import top_logprobs
from pagelet.protocol.sampling import SamplingParams

VOCAB = 50
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=25)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    top_k=st.sampled_from([0, 1, 5, 49, 50, 1000]),
    min_p=st.sampled_from([0.0, 0.1, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.6]),
    presence_penalty=st.sampled_from([0.0, 1.1, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -2.0]),
    logit_bias=st.none()
    | st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 2.0, 5.5])),
    min_tokens=st.sampled_from([0, 3, 30]),
    stop_token_ids=st.lists(st.integers(0, VOCAB - 1), max_size=3),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.none() | st.integers(0, 4),
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 49), TOKENS, TOKENS, PARAMS), min_size=1, max_size=5
)  # first prompt token (a prompt is never empty), rest of it, output, parameters
EOS = [3, 4]


def make_rows(requests):
    rows = RequestRows(8, 64, 16, make_layout([None], 1), torch.device("cpu"))
    new = [
        NewRequestData(index, [first, *prompt, *output], 1 + len(prompt), params, EOS, [[1]])
        for index, (first, prompt, output, params) in enumerate(requests)
    ]
    rows.update(SchedulerOutput(1, new, [], [], 0))
    positions = np.array([len(data.token_ids) for data in new])
    return rows, rows.find(range(len(new))), positions


def random_logits(seed, num_rows):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_rows, VOCAB, generator=generator, dtype=torch.float64)
    return torch.where(
        torch.rand(num_rows, VOCAB, generator=generator) < 0.3, logits.round(), logits
    )


def logprobs_of(sampled):
    """By row, of those that asked."""
    if (rows := sampled.logprobs) is None:
        return {}
    found = logprobs_module.entries(*rows.tensors, rows.counts)
    return dict(zip(sampled.with_logprobs, found, strict=True))


def reference(logits, first, prompt, output, params):
    """One row's token, as the parameters' descriptions have it."""
    values = logits.tolist()
    if len(output) < params.min_tokens:
        for token in [*EOS, *params.stop_token_ids]:
            values[token] = -math.inf
    for token, bias in (params.logit_bias or {}).items():
        values[token] += bias
    for token in {first, *prompt, *output}:
        penalty = params.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
        times = output.count(token)
        values[token] -= params.frequency_penalty * times
        values[token] -= params.presence_penalty * (times > 0)
    if params.greedy:
        return values.index(max(values))
    position = 1 + len(prompt) + len(output)
    number = uniforms(np.array([params.seed], np.uint64), np.array([position]))
    token_ids, _ = reference_sample(
        torch.tensor([values], dtype=torch.float64),
        torch.tensor([params.temperature], dtype=torch.float64),
        torch.from_numpy(number),
        min_p=torch.tensor([params.min_p], dtype=torch.float64),
        top_k=torch.tensor([params.top_k]),
        top_p=torch.tensor([params.top_p], dtype=torch.float64),
    )
    return int(token_ids[0])


@settings(max_examples=200)
@given(requests=REQUESTS, seed=st.integers(0, 2**32))
def test_every_row_is_sampled_as_the_slow_reference_does(requests, seed):
    rows, row_index, positions = make_rows(requests)
    logits = random_logits(seed, len(requests))
    sampled = sample_tokens(logits.clone(), rows, row_index, positions)
    assert sampled.token_ids.tolist() == [
        reference(row, *request) for row, request in zip(logits, requests, strict=True)
    ]
    assert not sampled.broken.any()
    found = logprobs_of(sampled)
    for index, (*_, params) in enumerate(requests):
        assert (index in found) == (params.logprobs is not None)
        if index in found:
            expected = torch.log_softmax(logits[index], -1)
            chosen = int(sampled.token_ids[index])
            entry = found[index]
            assert entry.logprobs == pytest.approx(
                [float(expected[chosen]), *expected.topk(params.logprobs).values.tolist()]
            )


SMALL = st.integers(0, 4)


@settings(max_examples=100)
@given(
    prompt=st.lists(SMALL, max_size=5),
    output=st.lists(SMALL, max_size=8),
    allowed=st.none() | st.sets(st.integers(0, VOCAB - 1), min_size=1),
    bad_words=st.lists(st.lists(SMALL, min_size=1, max_size=4), max_size=6),
    seed=st.integers(0, 2**32),
)
def test_tokens_that_may_not_be_drawn(prompt, output, allowed, bad_words, seed):
    params = SamplingParams(
        seed=seed,
        allowed_token_ids=None if allowed is None else sorted({7, 33, *allowed}),
        bad_word_token_ids=bad_words,
    )
    plain = random_logits(seed, 2)
    rows, row_index, positions = make_rows(
        [(1, prompt, output, SamplingParams(seed=seed)), (1, prompt, output, params)]
    )
    expected = plain[1].clone()
    for token in range(VOCAB):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            expected[token] = -math.inf
        if any([*output, token][-len(word) :] == word for word in bad_words):
            expected[token] = -math.inf
    sampled = sample_tokens(plain[:2].clone(), rows, row_index, positions)
    assert sampled.token_ids.tolist() == [
        reference(plain[0], 1, prompt, output, params),
        reference(expected, 1, prompt, output, params),
    ]


@settings(max_examples=50)
@given(requests=REQUESTS, seed=st.integers(0, 2**32), order=st.randoms())
def test_a_row_is_the_same_alone_and_in_any_batch(requests, seed, order):
    rows, row_index, positions = make_rows(requests)
    logits = random_logits(seed, len(requests)).float()
    together = sample_tokens(logits.clone(), rows, row_index, positions).token_ids
    for index in range(len(requests)):
        part = slice(index, index + 1)
        alone = sample_tokens(logits[part].clone(), rows, row_index[part], positions[part])
        assert int(alone.token_ids) == int(together[index])
    shuffled = list(range(len(requests)))
    order.shuffle(shuffled)
    mixed = sample_tokens(logits[shuffled], rows, row_index[shuffled], positions[shuffled])
    assert mixed.token_ids.tolist() == together[shuffled].tolist()


@settings(max_examples=50)
@given(requests=REQUESTS, seed=st.integers(0, 2**32))
def test_without_the_cpu_library_it_is_the_same(requests, seed):
    rows, row_index, positions = make_rows(requests)
    logits = random_logits(seed, len(requests)).float()
    got = sample_tokens(logits.clone(), rows, row_index, positions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler_module, "sample", batched.sample)
        patch.setattr(logprobs_module, "top_logprobs", top_logprobs)
        expected = sample_tokens(logits.clone(), rows, row_index, positions)
    assert torch.equal(got.token_ids, expected.token_ids)
    assert torch.equal(got.broken, expected.broken)
    found, wanted = logprobs_of(got), logprobs_of(expected)
    assert found.keys() == wanted.keys()
    for index, entry in wanted.items():
        assert found[index].logprobs == pytest.approx(entry.logprobs, rel=1e-5, abs=1e-5)
        assert found[index].rank == entry.rank


def test_penalties_in_chunks_are_the_same(monkeypatch):
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.4, seed=0)
    requests = [(i, list(range(2 * i)), [i, i, 7 + i], params) for i in range(5)]
    rows, row_index, positions = make_rows(requests)
    whole = random_logits(1, 5)
    chunked = whole.clone()
    logits_module.adjust_logits(whole, rows, row_index, positions)
    monkeypatch.setattr(logits_module, "_PENALTY_CHUNK_ELEMENTS", 1)
    logits_module.adjust_logits(chunked, rows, row_index, positions)
    assert torch.equal(whole, chunked)


def test_a_seed_of_any_size_has_a_place():
    for seed in (-1, 2**64 + 5, None):
        rows, row_index, positions = make_rows([(1, [], [], SamplingParams(seed=seed))])
        token_ids = sample_tokens(random_logits(0, 1), rows, row_index, positions).token_ids
        assert 0 <= int(token_ids) < VOCAB


def test_greedy_takes_the_first_of_equal_logits():
    greedy = SamplingParams(temperature=0.0)
    rows, row_index, positions = make_rows([(1, [], [], greedy)] * 2)
    logits = torch.zeros(2, VOCAB)
    logits[0, 20:30] = 1.0
    assert sample_tokens(logits, rows, row_index, positions).token_ids.tolist() == [20, 0]
