"""The line from tokens to seconds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.routing.prefill_speed import PrefillSpeed


@given(
    rate=st.floats(50, 1e5),
    start=st.floats(0.0, 2.0),
    described=st.none() | st.floats(50, 1e5),
    sizes=st.lists(st.integers(1, 4000), min_size=40, max_size=80),
)
def test_between_what_was_seen_the_line_is_close(
    rate: float, start: float, described: float | None, sizes: list[int]
) -> None:
    """Whatever it was told: at the mean it is right, and it never leaves what time can be."""
    speed = PrefillSpeed(0.02)
    speed.describe(described, None)
    for size in sizes:
        speed.observe(size, start + size / rate)
    assert speed.rate is not None
    assert speed.rate >= 1
    assert speed.start_seconds >= 0
    weights = [0.97 ** (len(sizes) - 1 - index) for index in range(len(sizes))]
    mean = sum(w * size for w, size in zip(weights, sizes, strict=True)) / sum(weights)
    if speed.rate > 1 and described is None:
        predicted = speed.start_seconds + mean / speed.rate
        assert predicted <= 1.5 * (start + mean / rate) + 1e-3


def test_work_and_the_rest_are_told_apart() -> None:
    speed, rng = PrefillSpeed(0.02), random.Random(0)
    speed.describe(1800.0, 0.01)
    assert (speed.rate, speed.start_seconds) == (1800.0, 0.01)
    for _ in range(200):
        tokens = rng.randint(10, 3000)
        speed.observe(tokens, 0.2 + tokens / 1500 + rng.uniform(-0.05, 0.05))
    assert speed.rate == pytest.approx(
        1500, rel=0.2
    )  # told another one, in which it believes a bit
    assert speed.start_seconds + 1500 / speed.rate == pytest.approx(1.2, rel=0.05)


def test_prompts_that_are_alike_leave_the_described_rate_alone() -> None:
    speed = PrefillSpeed(0.02)
    speed.describe(2000.0, 0.01)
    for _ in range(100):
        speed.observe(100, 0.25)
    assert speed.rate == pytest.approx(2000)
    assert speed.start_seconds == pytest.approx(0.2)


def test_cached_prompts_do_not_make_a_replica_slow() -> None:
    """All of their time is a step's fixed time: a long prompt takes as long as was told."""
    speed = PrefillSpeed(0.02)
    speed.describe(2000.0, 0.05)
    for _ in range(100):
        speed.observe(1, 0.05)
    assert speed.rate is not None
    assert speed.start_seconds + 4000 / speed.rate == pytest.approx(2.05, rel=0.01)


def test_a_replica_that_becomes_slow_is_known_to_be_soon() -> None:
    speed = PrefillSpeed(0.02)
    for number in range(100):
        tokens = 100 + 300 * (number % 4)
        speed.observe(tokens, tokens / (2000 if number < 60 else 100))
    assert speed.rate is not None
    assert speed.start_seconds + 1000 / speed.rate > 4


def test_one_answer_says_nothing_of_a_replica_that_says_nothing_of_itself() -> None:
    speed = PrefillSpeed(0.02)
    for _ in range(2):
        speed.observe(20, 0.1)
        assert speed.rate is None
    speed.observe(20, 0.1)
    assert speed.rate is not None
