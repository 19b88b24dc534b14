"""Sampling: every form equals the row-at-a-time definition, rows do not touch one another, and the
draws follow the distribution."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.kernels.cpu.library import library
from pagelet.kernels.sample import batched, cpu, reference, sample
from pagelet.kernels.sample.random import uniforms

DTYPES = st.sampled_from([torch.float32, torch.float64])
FILTERS = st.sets(st.sampled_from(["min_p", "top_k", "top_p"]))
# Around the blocks of 256 logits that the C++ form tells apart by their maxima.
VOCABS = st.sampled_from([1, 2, 7, 63, 64, 65, 255, 256, 257, 300, 1100, 5000])


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
        torch.where(rand[5] < 0.2, 0.0, rand[0] * 3 + 0.01),
        rand[1],
        {
            "min_p": torch.where(rand[2] < 0.5, rand[2] ** 4, 0.0),
            "top_k": (rand[3] ** 3 * (vocab + 3)).long(),
            "top_p": torch.where(rand[4] < 0.8, rand[4] + 1e-3, 1.0),
        },
    )


def options_of(filters, used):
    options = {name: filters[name] for name in used}
    options["max_top_k"] = int(filters["top_k"].max()) if "top_k" in used else 0
    if options["max_top_k"] == 0:
        options.pop("top_k", None)
    return options


def lists(result):
    return [column.tolist() for column in result]


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 5), VOCABS, DTYPES, FILTERS)
def test_batched_equals_the_reference(seed, rows, vocab, dtype, used):
    logits, temperature, uniform, filters = draw_batch(seed, rows, vocab, dtype)
    options = options_of(filters, used)
    before = logits.clone()
    got = batched.sample(logits, temperature, uniform, **options)
    assert lists(got) == lists(reference.sample(logits, temperature, uniform, **options))
    assert torch.equal(logits, before)


MANY = settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@MANY
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 5),
    vocab=VOCABS,
    used=FILTERS,
    threads=st.integers(1, 3),
    rounded=st.booleans(),
    poison=st.none() | st.sampled_from([math.nan, -math.nan, math.inf]),
    gap=st.integers(0, 9),
)
def test_cpp_equals_the_reference(tier, seed, rows, vocab, used, threads, rounded, poison, gap):
    logits, temperature, uniform, filters = draw_batch(seed, rows, vocab, torch.float32)
    options = options_of(filters, used) if rows else {}
    if rounded:  # many ties
        logits = logits.round()
    if poison is not None and rows:
        logits[seed % rows, seed % vocab] = poison
    wide = torch.full((rows, vocab + gap), math.nan)
    wide[:, :vocab] = logits
    before = library().threads
    library().set_threads(threads)
    try:
        got = cpu.sample(wide[:, :vocab], temperature, uniform, **options)
    finally:
        library().set_threads(before)
    assert lists(got) == lists(reference.sample(logits, temperature, uniform, **options))


@MANY
@given(
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([1e-30, 1e-9, 1e-5, 0.3, 1.0, 40.0, 1e4, 1e9, 1e30]),
    top_k=st.sampled_from([0, 1, 2, 3, 40, 901, 2**40]),
    top_p=st.sampled_from([0.0, 1e-9, 0.5, 0.9, 1 - 2**-53, 1.0]),
    min_p=st.sampled_from([0.0, 1e-13, 0.5, 1.0]),
    uniform=st.sampled_from([0.0, 0.5, 1 - 2**-53]),
    logit=st.sampled_from([0.0, -3e38, 3e38, 1e-40]),
)
def test_extremes_equal_the_reference(tier, logit, seed, temperature, top_k, top_p, min_p, uniform):
    logits = torch.full((2, 901), logit)
    generator = torch.Generator().manual_seed(seed)
    logits[1] += 9 * torch.randn(901, generator=generator)
    logits[1, seed % 901] = -math.inf

    def column(value):
        return torch.full((2,), value, dtype=torch.float64)

    columns = (logits, column(temperature), column(uniform))
    options = {
        "min_p": column(min_p),
        "top_p": column(top_p),
        "top_k": torch.full((2,), top_k) if top_k else None,
        "max_top_k": top_k,
    }
    expected = lists(reference.sample(*columns, **options))
    assert lists(cpu.sample(*columns, **options)) == expected
    assert lists(batched.sample(*columns, **options)) == expected


def test_cpp_equals_batched_on_a_real_vocabulary(tier):
    logits, temperature, uniform, filters = draw_batch(11, 12, 49_152, torch.float32)
    for used in ((), ("top_p",), ("top_k", "top_p"), ("min_p",)):
        options = options_of(filters, used)
        got = cpu.sample(logits, temperature, uniform, **options)
        assert lists(got) == lists(batched.sample(logits, temperature, uniform, **options))


@pytest.mark.parametrize("used", [{"min_p"}, {"top_k"}, {"top_p"}, {"min_p", "top_k", "top_p"}])
@pytest.mark.parametrize(
    ("vocab", "dtype"), [(1, torch.float32), (65, torch.float64), (2100, torch.float32)]
)
def test_triton_equals_the_reference(vocab, dtype, used):
    """In the interpreter, which is slow: few rows, but with ties and what a row's filters keep."""
    logits, temperature, uniform, filters = draw_batch(vocab, 3, vocab, dtype)
    temperature[1] = 0.7
    filters["top_k"][1] = vocab // 3
    options = options_of(filters, used)
    wide = torch.full((3, vocab + 5), math.nan, dtype=dtype)
    wide[:, :vocab] = logits
    got = sample.implementations["triton"](wide[:, :vocab], temperature, uniform, **options)
    assert lists(got) == lists(reference.sample(logits, temperature, uniform, **options))


@pytest.mark.parametrize("implementation", sorted(sample.implementations))
def test_at_temperature_0_the_first_of_the_largest_is_taken(implementation):
    function = sample.implementations[implementation]
    logits = torch.zeros(3, 700)
    logits[0, 300:400] = 1.0
    logits[1, 699] = 1e-45
    uniform = torch.tensor([0.9, 0.9, 0.9], dtype=torch.float64)
    zeros = torch.zeros(3, dtype=torch.float64)
    for temperature in (None, zeros):
        token_ids, broken = function(logits, temperature, uniform)
        assert token_ids.tolist() == [300, 699, 0]
        assert broken.tolist() == [False, False, False]


@pytest.mark.parametrize("implementation", sorted(sample.implementations))
def test_rows_without_a_finite_maximum_are_broken(implementation):
    logits = torch.zeros(5, 20)
    logits[0, 3] = math.inf
    logits[1, 3] = -math.inf
    logits[2] = -math.inf
    logits[3, 19] = math.nan
    uniform, temperature = torch.full((2, 5), 0.5, dtype=torch.float64)
    for given_temperature in (temperature, None):
        _, broken = sample.implementations[implementation](logits, given_temperature, uniform)
        assert broken.tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_draws_the_same_alone_and_in_any_batch(dtype):
    logits, temperature, uniform, filters = draw_batch(7, 16, 901, dtype)
    maximum = int(filters["top_k"].max())
    together, _ = sample(logits, temperature, uniform, **filters, max_top_k=maximum)
    for row in range(16):
        rows = slice(row, row + 1)
        alone, _ = sample(
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
    clean, _ = function(logits, temperature, uniform, **options)
    poisoned = logits.clone()
    poisoned[2, 50] = poison
    got, broken = function(poisoned, temperature, uniform, **options)
    assert broken.tolist() == [False, False, True, False]
    assert 0 <= int(got[2]) < 200
    others = [0, 1, 3]
    assert got[others].tolist() == clean[others].tolist()


def chi_square(counts, probabilities):
    expected = np.asarray(probabilities) * np.sum(counts)
    return float(np.sum((counts - expected) ** 2 / expected))


@pytest.mark.parametrize("implementation", ["batched", "cpp"])
def test_draws_follow_the_distribution(implementation):
    vocab, draws = 12, 40_000
    logits = torch.linspace(-2, 2, vocab)
    uniform = torch.from_numpy(uniforms(np.full(draws, 99, np.uint64), np.arange(draws)))
    got, _ = sample.implementations[implementation](
        logits.expand(draws, -1), torch.full((draws,), 0.8, dtype=torch.float64), uniform
    )
    counts = np.bincount(got.numpy(), minlength=vocab)
    # 31.3 is the 0.999 quantile of chi-square with 11 degrees of freedom.
    assert chi_square(counts, torch.softmax(logits.double() / 0.8, -1).numpy()) < 31.3


def test_seeds_next_to_each_other_are_independent():
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.int64))
    drawn = uniforms(seeds.ravel(), positions.ravel()).reshape(200, 200)
    cells = np.histogram2d(drawn[:, :-1].ravel(), drawn[:, 1:].ravel(), bins=8)[0]
    # 103.4 is the 0.999 quantile of chi-square with 63 degrees of freedom.
    assert chi_square(cells.ravel(), np.full(64, 1 / 64)) < 103.4
