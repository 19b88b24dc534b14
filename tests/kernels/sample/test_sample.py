"""Sampling: the batched form equals the row-at-a-time definition, rows do not touch one another,
and the draws follow the distribution."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.kernels.sample import batched, reference, sample
from pagelet.kernels.sample.random import uniforms

DTYPES = st.sampled_from([torch.float32, torch.float64])


def splitmix64(state, outputs):
    """The published generator, in Python's integers."""
    mask = (1 << 64) - 1
    for _ in range(outputs):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@given(st.integers(0, 2**64 - 1), st.integers(0, 500))
def test_uniforms_are_splitmix64(seed, position):
    expected = (splitmix64(splitmix64(seed, 1), position + 1) >> 11) * 2.0**-53
    got = uniforms(np.array([seed], np.uint64), np.array([position], np.int64))
    assert got.tolist() == [expected]


def test_uniforms_golden_values():
    assert splitmix64(1234567, 1) == 6457827717110365317  # of the generator's own test vectors
    seeds = np.array([0, 0, 1, 2**64 - 1], np.uint64)
    positions = np.array([0, 1, 0, 131071], np.int64)
    assert uniforms(seeds, positions).tolist() == [
        0.6524484863740322,
        0.7012121095215252,
        0.36818951565166946,
        0.8258740021392166,
    ]


def draw_batch(seed, rows, vocab, dtype):
    generator = torch.Generator().manual_seed(seed)
    spread = 4.0 * torch.rand(rows, 1, generator=generator, dtype=dtype) + 0.1
    logits = torch.randn(rows, vocab, generator=generator, dtype=dtype) * spread
    # Ties, which a sort would break by its own habits, and tokens that are masked out.
    logits = torch.where(torch.rand(rows, vocab, generator=generator) < 0.3, logits.round(), logits)
    mask = torch.rand(rows, vocab, generator=generator) < 0.1
    mask[:, 0] = False
    logits = logits.masked_fill(mask, -math.inf)
    rand = torch.rand(6, rows, generator=generator, dtype=torch.float64)
    return (
        logits,
        (rand[0] * 3 + 0.01).to(dtype),
        rand[1],
        {
            "min_p": torch.where(rand[2] < 0.5, rand[2], 0.0),
            "top_k": (rand[3] * (vocab + 3)).long(),
            "top_p": torch.where(rand[4] < 0.8, rand[4] + 1e-3, 1.0),
        },
    )


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 5),
    vocab=st.sampled_from([1, 2, 7, 63, 64, 65, 300, 1100]),
    dtype=DTYPES,
    used=st.sets(st.sampled_from(["min_p", "top_k", "top_p"])),
)
def test_batched_equals_the_reference(seed, rows, vocab, dtype, used):
    logits, temperature, uniform, filters = draw_batch(seed, rows, vocab, dtype)
    options = {name: filters[name] for name in used}
    options["max_top_k"] = int(filters["top_k"].max()) if "top_k" in used else 0
    if options["max_top_k"] == 0:
        options.pop("top_k", None)
    before = logits.clone()
    got = batched.sample(logits, temperature, uniform, **options)
    assert got.tolist() == reference.sample(logits, temperature, uniform, **options).tolist()
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_draws_the_same_alone_and_in_any_batch(dtype):
    logits, temperature, uniform, filters = draw_batch(7, 16, 3001, dtype)
    maximum = int(filters["top_k"].max())
    together = sample(logits, temperature, uniform, **filters, max_top_k=maximum)
    for row in range(16):
        rows = slice(row, row + 1)
        alone = sample(
            logits[rows],
            temperature[rows],
            uniform[rows],
            **{name: column[rows] for name, column in filters.items()},
            max_top_k=maximum,
        )
        assert alone.tolist() == together[rows].tolist()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("implementation", sorted(sample.implementations))
def test_a_poisoned_row_leaves_the_others_alone(poison, implementation):
    function = sample.implementations[implementation]
    logits, temperature, uniform, filters = draw_batch(3, 4, 200, torch.float32)
    options = {**filters, "max_top_k": int(filters["top_k"].max())}
    clean = function(logits, temperature, uniform, **options)
    poisoned = logits.clone()
    poisoned[2, 50] = poison
    got = function(poisoned, temperature, uniform, **options)
    assert 0 <= int(got[2]) < 200
    others = [0, 1, 3]
    assert got[others].tolist() == clean[others].tolist()


def chi_square(counts, probabilities):
    expected = np.asarray(probabilities) * np.sum(counts)
    return float(np.sum((counts - expected) ** 2 / expected))


def test_draws_follow_the_distribution():
    vocab, draws = 12, 40_000
    logits = torch.linspace(-2, 2, vocab, dtype=torch.float64)
    uniform = torch.from_numpy(uniforms(np.full(draws, 99, np.uint64), np.arange(draws)))
    got = sample(logits.expand(draws, -1), torch.full((draws,), 0.8, dtype=torch.float64), uniform)
    counts = np.bincount(got.numpy(), minlength=vocab)
    # 31.3 is the 0.999 quantile of chi-square with 11 degrees of freedom.
    assert chi_square(counts, torch.softmax(logits / 0.8, -1).numpy()) < 31.3


def test_seeds_next_to_each_other_are_independent():
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.int64))
    drawn = uniforms(seeds.ravel(), positions.ravel()).reshape(200, 200)
    cells = np.histogram2d(drawn[:, :-1].ravel(), drawn[:, 1:].ravel(), bins=8)[0]
    # 103.4 is the 0.999 quantile of chi-square with 63 degrees of freedom.
    assert chi_square(cells.ravel(), np.full(64, 1 / 64)) < 103.4
