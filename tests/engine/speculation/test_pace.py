"""Drafts are as many as pay off by what was measured, and none where they cost time."""

from pagelet.engine.speculation.pace import Acceptance, DraftPace, StepTimes


def measured(plain: float, draft: float, wait: float = 0.0, num_requests: int = 1) -> StepTimes:
    """Of a machine where each draft adds `draft` seconds to a step of `plain` seconds."""
    times = StepTimes()
    for _ in range(50):
        times.observe(num_requests, 0, False, plain)
    for _ in range(50):
        times.observe(num_requests, 4, True, plain + wait + 4 * draft)
        times.observe(num_requests, 0, True, plain + wait)
    return times


def drafted_share(
    times: StepTimes, right: float, num_requests: int = 1, steps: int = 4000
) -> float:
    """Drafts a step, where the first `right` share of each draft's five tokens is right."""
    pace, total, prior, num_tokens = DraftPace(), 0, Acceptance(0.99), 0
    for _ in range(steps):
        num_tokens += 1
        if pace.pauses(num_tokens):
            continue
        length = pace.length(5, times, num_requests, prior.rate(0.6), num_tokens)
        if length:
            accepted = min(length, round(5 * right))
            pace.observe(length, accepted)
            prior.observe(length, accepted)
            num_tokens += accepted
            total += length
    return total / steps


def test_prices_are_what_a_draft_adds_over_what_a_token_costs() -> None:
    times = measured(0.010, 0.001)
    assert abs(times.draft_price(1) - 0.1) < 1e-3
    assert abs(measured(0.010, 0.001, num_requests=8).draft_price(8) - 0.8) < 1e-3
    assert abs(measured(0.010, 0.001, wait=0.002).wait_price(1) - 0.2) < 1e-3
    assert times.knows_plain(1)
    assert not times.knows_plain(8), "of other batches nothing is known"


def test_one_slow_step_changes_no_price() -> None:
    times = measured(0.010, 0.001)
    before = times.draft_price(1)
    times.observe(1, 0, False, 5.0)
    times.observe(1, 4, True, 5.0)
    assert times.draft_price(1) == before


def test_right_drafts_are_as_long_as_they_may_be() -> None:
    assert drafted_share(measured(0.010, 0.001), right=1.0) > 4.5


def test_wrong_drafts_end_but_for_rare_probes() -> None:
    assert 0 < drafted_share(measured(0.010, 0.001), right=0.0) < 0.15


def test_drafts_end_where_they_cost_more_than_they_bring() -> None:
    assert drafted_share(measured(0.010, 0.012), right=1.0) < 0.15
    assert drafted_share(measured(0.010, 0.002, num_requests=8), 1.0, num_requests=8) < 0.15


def test_a_request_that_became_predictable_is_found_out() -> None:
    times, pace, num_tokens, drafted = measured(0.010, 0.001), DraftPace(), 0, 0
    for step in range(3000):
        num_tokens += 1
        if pace.pauses(num_tokens):
            continue
        length = pace.length(5, times, 1, 0.05, num_tokens)
        accepted = length if step > 1000 else 0
        if length:
            pace.observe(length, accepted)
        num_tokens += accepted
        drafted += accepted
    assert drafted > 3000


def test_tries_that_find_nothing_end_where_waiting_for_them_costs_time() -> None:
    times, pace, tries = measured(0.010, 0.0005, wait=0.004), DraftPace(), 0
    for num_tokens in range(1, 4000):
        if not pace.pauses(num_tokens) and pace.length(5, times, 1, 0.6, num_tokens):
            pace.observe(0, 0)
            tries += 1
    assert tries < 400
