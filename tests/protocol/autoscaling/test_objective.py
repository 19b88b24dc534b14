import heapq
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.autoscaling.demand import ScalingTargets, Work, demand
from pagelet.protocol.autoscaling.objective import SHARE_IN_TIME, Prompts, need

CHATS = [(0.1, 5.0), (0.3, 3.0), (0.8, 1.0)]
loads = st.floats(1e-3, 300)
objectives = st.floats(0.9, 30)


def in_time(rng, replicas, load, sizes, objective, count=6000):
    """The share of prompts of a Poisson process that get their first token in time, of those that
    an idle replica would give it in time; each goes where it waits least."""
    seconds, weights = zip(*sizes, strict=True)
    mean = sum(s * w for s, w in sizes) / sum(weights)
    free, now, good, asked = [0.0] * replicas, 0.0, 0, 0
    for _ in range(count):
        now += rng.expovariate(load / mean)
        (size,) = rng.choices(seconds, weights)
        begins = max(now, heapq.heappop(free))
        heapq.heappush(free, begins + size)
        if size < objective:
            asked += 1
            good += begins + size - now <= objective
    return good / asked


@pytest.mark.parametrize("load", [0.2, 2.0, 9.0])
@pytest.mark.parametrize("objective", [0.9, 1.5, 4.0])
def test_so_many_replicas_keep_the_objective_and_hardly_fewer_would(load, objective):
    sizes = [*CHATS, (6.0, 0.3)]
    prompts = Prompts(load=load, sizes=sizes)
    replicas = math.ceil(need(prompts, objective).replicas)
    rng = random.Random(1)
    assert in_time(rng, replicas, load, sizes, objective) >= SHARE_IN_TIME - 0.02
    assert replicas <= 2 + load * 1.5
    fewer = replicas - 1 - round(replicas / 4)
    if fewer > load:
        assert in_time(rng, fewer, load, sizes, objective) < SHARE_IN_TIME + 0.02


@given(loads, objectives, objectives)
def test_a_shorter_time_takes_no_fewer_replicas(load, one, other):
    prompts = Prompts(load=load, sizes=CHATS)
    short, long = sorted((one, other))
    assert need(prompts, short).replicas >= need(prompts, long).replicas - 1e-9


@given(loads, loads, objectives)
def test_more_load_takes_no_fewer_replicas_and_never_less_than_it_keeps_busy(one, other, seconds):
    less, more = sorted((one, other))
    few, many = (need(Prompts(load=load, sizes=CHATS), seconds).replicas for load in (less, more))
    assert few <= many + 1e-9
    assert few >= less


@given(loads, objectives)
def test_two_routers_that_see_half_each_ask_for_no_fewer_whole_replicas(load, objective):
    both = need(Prompts(load=load, sizes=CHATS), objective).replicas
    half = need(Prompts(load=load / 2, sizes=CHATS), objective).replicas
    assert math.ceil(2 * half) >= math.ceil(both) - 1
    assert 2 * half <= 2 * both + 2


def test_a_time_that_no_replica_could_keep_is_only_worked_for():
    """Documents that take longer alone than is asked for, and chats that do not."""
    documents = Prompts(load=3.0, sizes=[(20.0, 1.0)])
    assert 3.0 <= need(documents, 2.0).replicas < 4.0
    late = Prompts(load=0.5, start_seconds=100.0, sizes=CHATS)
    assert need(late, 2.0).replicas < 4.0


def test_without_prompts_none_are_needed():
    assert need(Prompts(), 1.0).replicas == 0
    assert need(Prompts(load=5000.0, sizes=CHATS), 1.0).replicas == pytest.approx(5500)


def test_what_waits_anyway_asks_for_no_more_and_a_burst_does():
    targets = ScalingTargets(ttft_seconds=2.0)
    prompts = Prompts(load=4.0, sizes=CHATS)
    steady = need(prompts, 2.0)
    calm = Work(prompts=prompts, queued_seconds=steady.queued_seconds, queued=3)
    assert demand(calm, targets)["ttft"] == pytest.approx(steady.replicas)
    assert demand(calm, targets)["backlog"] == 0
    burst = Work(prompts=prompts, queued_seconds=20.0, queued=30)
    assert demand(burst, targets)["ttft"] > steady.replicas + 20.0 / 2.0 - 1
    assert demand(burst, ScalingTargets())["ttft"] == 0
