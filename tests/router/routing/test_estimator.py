"""What the router makes of what it sees of a replica."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.replica import ReplicaDescription
from pagelet.router.routing.estimator import InFlight, ReplicaEstimator

RATE = 1000.0


def describe(**changes: object) -> ReplicaDescription:
    values: dict[str, object] = {
        "incarnation": "1",
        "version": "0",
        "served_model_names": ["m"],
        "max_model_len": 4096,
        "block_size": 16,
        "num_kv_blocks": 10_000,
        "max_num_seqs": 64,
        "enable_prefix_caching": True,
        "data_parallel_size": 1,
        "prefill_tokens_per_second": RATE,
        "decode_step_seconds": 0.01,
    }
    return ReplicaDescription(**{**values, **changes})  # type: ignore[arg-type]


def described(**changes: object) -> ReplicaEstimator:
    estimator = ReplicaEstimator()
    estimator.describe(describe(**changes))
    return estimator


def test_the_wait_is_the_work_ahead_and_shrinks_as_time_goes_on() -> None:
    estimator = described()
    assert estimator.rate == RATE
    assert estimator.wait_seconds(0.0, RATE) == 0
    first = estimator.begin(500, 0.0)
    estimator.begin(1500, 0.0)
    assert estimator.wait_seconds(0.0, RATE) == pytest.approx(2.0)
    assert estimator.wait_seconds(0.3, RATE) == pytest.approx(1.7)
    estimator.first_token(first, 0.4)  # a little faster than thought
    assert estimator.wait_seconds(0.4, RATE) == pytest.approx(1.5)


def test_a_prompt_waits_for_the_step_under_way_and_a_token_tells_that_it_ended() -> None:
    estimator = described(decode_step_seconds=0.1)
    answering = estimator.begin(200, 0.0)
    estimator.first_token(answering, 0.3)  # its next token is being computed
    assert estimator.wait_seconds(0.32, RATE) == pytest.approx(0.08)
    item = estimator.begin(250, 0.32)
    assert item.residual == pytest.approx(0.08)
    assert estimator.wait_seconds(0.39, RATE) == pytest.approx(0.26), "no step took it in yet"
    estimator.generated(answering, 1, 0.4)
    assert estimator.wait_seconds(0.5, RATE) == pytest.approx(0.15)


def test_a_step_that_ends_one_prompt_has_begun_with_the_next() -> None:
    estimator = described(decode_step_seconds=0.1)
    answering = estimator.begin(10, 0.0)
    estimator.first_token(answering, 0.1)
    first = estimator.begin(100, 0.1)
    estimator.begin(400, 0.1)
    estimator.generated(answering, 1, 0.2)
    estimator.first_token(first, 0.45)  # a full step
    assert estimator.wait_seconds(0.45, RATE) == pytest.approx(0.25)
    estimator.generated(answering, 1, 0.451)  # of the same step
    assert estimator.wait_seconds(0.45, RATE) == pytest.approx(0.25)


def test_what_a_replica_that_is_idle_did_before_is_no_wait() -> None:
    estimator = described(decode_step_seconds=0.1)
    item = estimator.begin(100, 0.0)
    estimator.first_token(item, 0.1)
    assert estimator.wait_seconds(0.11, RATE) > 0.05
    estimator.end(item, 0.11)
    assert estimator.wait_seconds(0.11, RATE) == 0


def test_a_replica_that_falls_silent_looks_worse_and_worse() -> None:
    estimator = described()
    estimator.begin(100, 0.0)
    waits = [estimator.wait_seconds(at, RATE) for at in (1.0, 5.0, 20.0)]
    assert waits[0] < waits[1] < waits[2]
    assert waits[2] > 15


def test_full_slots_make_new_requests_wait_for_answers_to_end() -> None:
    estimator = described(max_num_seqs=4)
    running = [estimator.begin(10, 0.0) for _ in range(4)]
    for item in running:
        estimator.first_token(item, 0.1)
    estimator.end(running.pop(), 8.1)  # an answer takes eight seconds
    running.append(estimator.begin(10, 8.1))
    estimator.first_token(running[-1], 8.2)
    assert estimator.wait_seconds(8.2, RATE) == pytest.approx(2.0)
    estimator.end(running.pop(), 8.3)
    assert estimator.wait_seconds(8.3, RATE) < 0.5


def test_a_full_cache_makes_new_requests_wait() -> None:
    estimator = described(num_kv_blocks=100)  # 1,600 tokens
    items = [estimator.begin(600, 0.0) for _ in range(3)]
    for item in items:
        estimator.first_token(item, 1.0)
    estimator.end(items[0], 11.0)
    assert estimator.wait_seconds(11.0, RATE) == 0
    estimator.generated(items[1], 600, 11.0)
    assert estimator.wait_seconds(11.0, RATE) > 0.5


def answer(estimator: ReplicaEstimator, tokens: int, now: float, seconds: float) -> float:
    """A request that is alone, and when it has ended."""
    item = estimator.begin(tokens, now)
    estimator.first_token(item, now + seconds)
    estimator.end(item, now + seconds)
    return now + seconds


def test_the_rate_is_what_is_seen_and_one_stall_changes_little() -> None:
    estimator, now = described(), 0.0
    for number in range(80):
        tokens = 100 + 200 * (number % 5)
        seconds = 5.0 if number == 40 else 0.1 + tokens / 400
        now = answer(estimator, tokens, now, seconds)
    assert estimator.rate is not None
    assert 350 < estimator.rate < 700  # it said 1,000, which counts for something
    assert estimator.start_seconds + 500 / estimator.rate == pytest.approx(1.35, rel=0.15)


def test_a_replica_that_looked_slow_is_tried_again_after_a_while_without_requests() -> None:
    estimator, now = described(), 0.0
    for number in range(40):
        tokens = 100 + 200 * (number % 5)
        now = answer(estimator, tokens, now, tokens / 100)
    slow = estimator.rate
    assert slow is not None
    assert slow < RATE / 2
    estimator.wait_seconds(now + 4.0, slow)
    assert estimator.rate == slow
    estimator.wait_seconds(now + 6.0, slow)
    assert estimator.rate == RATE
    assert estimator.start_seconds == 0.01


def test_a_request_that_does_not_stream_is_no_prompt_once_that_should_be_done() -> None:
    estimator = described()
    silent = estimator.begin(500, 0.0, silent=True)
    assert estimator.wait_seconds(0.2, RATE) == pytest.approx(0.3)
    assert estimator.wait_seconds(20.0, RATE) == 0
    assert (estimator.pending_tokens, estimator.decoding) == (0, 1)
    estimator.first_token(silent, 30.0)  # the whole answer
    estimator.end(silent, 30.0)
    assert estimator.rate == RATE, "how long an answer takes says nothing of its prompt"
    assert estimator.in_flight == 0


def test_what_a_cache_really_held_is_what_the_rate_is_made_of() -> None:
    estimator, now = described(), 0.0
    for _ in range(60):
        item = estimator.begin(1, now)  # thought to be cached
        now += 1.0
        estimator.first_token(item, now)
        estimator.end(item, now, uncached=500)
    assert estimator.rate is not None
    assert estimator.start_seconds + 500 / estimator.rate == pytest.approx(1.0)


def test_several_ranks_prefill_together() -> None:
    assert described(data_parallel_size=4).rate == 4 * RATE


def test_nothing_known_is_none() -> None:
    estimator = ReplicaEstimator()
    assert estimator.rate is None
    estimator.describe(describe(prefill_tokens_per_second=None, decode_step_seconds=None))
    assert estimator.rate is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 500), st.floats(0, 2)), max_size=60))
def test_nothing_is_left_when_all_have_ended(steps: list[tuple[int, int, float]]) -> None:
    estimator, now = described(max_num_seqs=8), 0.0
    items: list[InFlight] = []
    for kind, tokens, passed in steps:
        now += passed
        if kind == 0 or not items:
            items.append(estimator.begin(tokens, now))
        elif kind == 1:
            estimator.first_token(items[tokens % len(items)], now)
        elif kind == 2:
            estimator.generated(items[tokens % len(items)], tokens, now)
        else:
            estimator.end(items.pop(tokens % len(items)), now)
        assert estimator.wait_seconds(now, RATE) >= 0
        assert estimator.in_flight == len(items)
        waiting = sum(item.uncached for item in items if item.prefilling)
        assert estimator.pending_tokens == waiting
    for item in items:
        estimator.end(item, now)
    assert estimator.in_flight == estimator.pending_tokens == 0
    assert estimator.wait_seconds(now, RATE) == 0


def test_nothing_is_ahead_of_a_request_when_what_nobody_hears_of_must_be_done() -> None:
    estimator = described()
    estimator.begin(500, 0.0, silent=True)
    assert estimator.begin(500, 0.25, silent=True).ahead == 250
    assert estimator.begin(500, 9.0).ahead == 0
