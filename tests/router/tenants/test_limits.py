import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.openai.rate_limits import format_duration
from pagelet.protocol.router import TenantLimits
from pagelet.router.tenants.counters import CounterTable, create_counters
from pagelet.router.tenants.limits import Limiter
from pagelet.router.tenants.tenant import Tenant


@pytest.fixture
def limiter():
    counters = CounterTable()
    yield Limiter(counters)
    counters.close()


def tenant(name="acme", **limits):
    return Tenant(name, TenantLimits(**limits))


def refusal(call, *args, **kwargs):
    with pytest.raises(ApiError) as error:
        call(*args, **kwargs)
    assert error.value.status == 429
    assert error.value.detail.code == "rate_limit_exceeded"
    return error.value


def test_requests_a_minute(limiter):
    acme = tenant(requests_per_minute=2)
    grants = [limiter.open(acme, now=0) for _ in range(2)]
    assert dict(grants[0].headers()) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "30s",
    }
    refused = refusal(limiter.open, acme, now=0)
    assert refused.headers["Retry-After"] == "30"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"] == "1m0s"
    refusal(limiter.open, acme, now=29)
    limiter.open(acme, now=30)
    limiter.open(tenant("other", requests_per_minute=2), now=0)


def test_tokens_are_reserved_and_settled_with_what_was_used(limiter):
    acme = tenant(tokens_per_minute=1000)
    first = limiter.open(acme, now=0)
    first.reserve(2, 100, 300, now=0)
    assert dict(first.headers())["x-ratelimit-remaining-tokens"] == "300"
    second = limiter.open(acme, now=0)
    refused = refusal(second.reserve, 1, 100, 300, now=0)
    assert "Limit 1000, Used 700, Requested 400" in str(refused)
    assert refused.headers["Retry-After"] == "6"
    first.settle(100, 50, now=0)
    first.settle(100, 50, now=0)
    assert dict(first.headers())["x-ratelimit-remaining-tokens"] == "850"
    second.reserve(1, 100, 300, now=0)
    second.close(now=0)
    third = limiter.open(acme, now=0)
    assert dict(third.headers())["x-ratelimit-remaining-tokens"] == "850"


def test_who_used_more_than_was_estimated_waits_longer(limiter):
    acme = tenant(tokens_per_minute=600)
    grant = limiter.open(acme, now=0)
    grant.reserve(1, 10, 10, now=0)
    grant.settle(10, 1190, now=0)
    late = limiter.open(acme, now=0)
    assert refusal(late.reserve, 1, 10, 0, now=0).headers == {"Retry-After": "61"}
    headers = dict(late.headers())
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert headers["x-ratelimit-reset-tokens"] == "2m0s"


def test_an_answer_without_a_limit_is_estimated_by_the_tenants_mean(limiter):
    acme = tenant(tokens_per_minute=1000)
    first = limiter.open(acme, now=0)
    first.reserve(1, 0, None, now=0)
    assert dict(first.headers())["x-ratelimit-remaining-tokens"] == "744"
    first.close()
    for minute in range(200):
        grant = limiter.open(acme, now=60.0 * minute)
        grant.reserve(2, 5, None, now=60.0 * minute)
        grant.settle(5, 80, now=60.0 * minute)
    assert limiter.mean_answer("acme") == pytest.approx(40, rel=0.01)
    assert limiter.mean_answer("other") == 256
    assert limiter.expected_tokens("acme", 2, 5, None) == pytest.approx(85, rel=0.01)
    assert limiter.expected_tokens("acme", 2, 5, 10) == 25


def test_what_can_never_be_granted_is_not_to_be_tried_again(limiter):
    refused = refusal(limiter.open(tenant(tokens_per_minute=100)).reserve, 1, 90, 11)
    assert refused.headers["x-should-retry"] == "false"
    assert "Retry-After" not in refused.headers
    refused = refusal(limiter.open(tenant(concurrency=2)).reserve, 3, 1, 1)
    assert refused.headers["x-should-retry"] == "false"


def test_answers_in_flight(limiter):
    acme = tenant(concurrency=3)
    grants = [limiter.open(acme) for _ in range(3)]
    grants[0].reserve(2, 1, 1)
    assert "2 answers in flight" in str(refusal(grants[1].reserve, 2, 1, 1))
    grants[1].reserve(1, 1, 1)
    assert refusal(grants[2].reserve, 1, 1, 1).headers["Retry-After"] == "1"
    grants[0].settle(1, 2)
    grants[0].close()
    grants[1].close()
    grants[1].close()
    grants[2].reserve(3, 1, 1)


def test_a_tenant_without_limits_is_not_looked_up():
    counters = CounterTable()
    limiter = Limiter(counters)
    counters.close()  # whoever looks into it fails
    for limits in ({}, {"weight": 2.0}):
        grant = limiter.open(tenant(**limits))
        grant.reserve(2, 5, None)
        grant.settle(5, 80)
        grant.close()
    assert limiter.mean_answer("acme") == 40
    for limit in ("requests_per_minute", "tokens_per_minute", "concurrency"):
        with pytest.raises(ValueError, match="closed"):
            limiter.open(tenant(**{limit: 1}))


def test_no_limit_no_header(limiter):
    grant = limiter.open(tenant())
    grant.reserve(1000, 10**9, 10**9)
    assert grant.headers() == []


def test_a_new_limit_counts_what_was_used_before(limiter):
    limiter.open(tenant(requests_per_minute=10), now=0)
    limiter.open(tenant(requests_per_minute=10), now=0)
    assert refusal(limiter.open, tenant(requests_per_minute=2), now=0)


@settings(max_examples=50)
@given(
    limit=st.integers(1, 600),
    steps=st.lists(st.tuples(st.floats(0, 60), st.integers(1, 100)), min_size=1, max_size=40),
)
def test_no_tenant_gets_more_than_its_rate_and_waiting_as_told_is_enough(limit, steps):
    counters = CounterTable()
    limiter, now, used = Limiter(counters), 0.0, 0
    acme = tenant(tokens_per_minute=limit)
    for gap, tokens in steps:
        now += gap
        grant = limiter.open(acme, now=now)
        try:
            grant.reserve(1, tokens, 0, now=now)
        except ApiError as error:
            if tokens > limit:
                continue
            now += int(error.headers["Retry-After"])
            grant.reserve(1, tokens, 0, now=now)
        used += tokens
        grant.settle(tokens, 0, now=now)
        assert used <= limit * (1 + now / 60) + 1e-3
    counters.close()


def test_limits_hold_for_all_workers_together_and_a_dead_ones_answers_are_forgotten():
    fd = create_counters(3)
    acme = tenant(requests_per_minute=100, concurrency=4)
    workers = [CounterTable(fd, 3, number) for number in range(3)]
    limiters = [Limiter(table) for table in workers]
    for limiter in limiters[:2]:
        limiter.open(acme, now=0).reserve(2, 0, 0, now=0)
    grant = limiters[2].open(acme, now=0)
    assert dict(grant.headers())["x-ratelimit-remaining-requests"] == "97"
    refusal(grant.reserve, 1, 0, 0, now=0)
    Limiter(CounterTable(fd, 3, 0))  # the successor of a worker that died with two answers
    grant.reserve(2, 0, 0, now=0)
    refusal(limiters[1].open(acme, now=0).reserve, 1, 0, 0, now=0)


COUNT = """
import sys
from pagelet.protocol.router import TenantLimits
from pagelet.router.tenants.counters import CounterTable
from pagelet.router.tenants.limits import Limiter
from pagelet.router.tenants.tenant import Tenant

fd, workers, worker = map(int, sys.argv[1:])
limiter = Limiter(CounterTable(fd, workers, worker))
acme = Tenant("acme", TenantLimits(requests_per_minute=10**6, concurrency=10**6))
for _ in range(2000):
    limiter.open(acme, now=1.0).reserve(1, 0, 0, now=1.0)
"""


def test_processes_that_count_at_once_lose_nothing():
    fd = create_counters(4)
    children = [
        subprocess.Popen([sys.executable, "-c", COUNT, str(fd), "4", str(n)], pass_fds=[fd])
        for n in range(3)
    ]
    assert [child.wait() for child in children] == [0, 0, 0]
    with CounterTable(fd, 4, 3).usage("acme", 1.0) as usage:
        assert usage.requests == 6000
        assert usage.in_flight == 6000


def test_rows_are_reused_once_nothing_of_them_counts(monkeypatch):
    monkeypatch.setattr("pagelet.router.tenants.counters._NUM_ROWS", 8)
    monkeypatch.setattr("pagelet.router.tenants.counters._PROBES", 8)
    table = CounterTable()
    limiter = Limiter(table)
    for number in range(100):
        now = number * 20.0  # three tenants at a time are within their minute
        first = limiter.open(tenant(f"t{number}", requests_per_minute=1), now=now)
        assert dict(first.headers())["x-ratelimit-remaining-requests"] == "0"
        refusal(limiter.open, tenant(f"t{number}", requests_per_minute=1), now=now)
        if number:
            refusal(limiter.open, tenant(f"t{number - 1}", requests_per_minute=1), now=now)
    table.close()


def test_a_tenant_whose_row_another_shares_keeps_its_own(monkeypatch):
    monkeypatch.setattr("pagelet.router.tenants.counters._NUM_ROWS", 8)
    monkeypatch.setattr("pagelet.router.tenants.counters._PROBES", 2)
    table = CounterTable()
    limiter = Limiter(table)
    full = [tenant(f"t{number}", concurrency=1) for number in range(50)]
    grants = {}
    for each in full:
        grants[each.name] = grant = limiter.open(each, now=0)
        try:
            grant.reserve(1, 0, 1, now=0)
        except ApiError:  # it shares a row that is taken
            del grants[each.name]
    assert 0 < len(grants) <= 8
    for name in grants:
        refusal(limiter.open(tenant(name, concurrency=1), now=0).reserve, 1, 0, 1, now=0)
    for grant in grants.values():
        grant.close(now=0)
    for each in full:
        with table.usage(each.name, 0) as usage:
            assert usage.in_flight == 0
    table.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0171, "18ms"),
        (0.999, "999ms"),
        (1, "1s"),
        (8.64, "8.64s"),
        (60, "1m0s"),
        (90.951, "1m30.951s"),
        (3600, "1h0m0s"),
        (-5, "0ms"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds, text):
    assert format_duration(seconds) == text
