import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.autoscaling.demand import (
    PREFILL_USE,
    DecodeLine,
    ScalingTargets,
    Work,
    demand,
)
from pagelet.protocol.autoscaling.objective import Prompts

amounts = st.floats(0, 1e6)
works = st.builds(
    Work,
    queued_seconds=amounts,
    queued=amounts,
    prompts=st.builds(Prompts, load=amounts),
    answers=amounts,
    kv_load=amounts,
)
TARGETS_OF = ScalingTargets(backlog_seconds=2.0, concurrency=16, kv_use=0.5)


def added(one, other):
    amounts = {field.name for field in dataclasses.fields(Work)} - {"prompts", "decode"}
    sums = {name: getattr(one, name) + getattr(other, name) for name in amounts}
    sizes = [*one.prompts.sizes, *other.prompts.sizes]
    load = one.prompts.load + other.prompts.load
    return Work(**sums, prompts=Prompts(load=load, sizes=sizes))


@given(works, works)
def test_the_demands_of_routers_add_up_to_no_more_than_one_router_would_see(one, other):
    apart = [demand(work, TARGETS_OF) for work in (one, other)]
    together = demand(added(one, other), TARGETS_OF)
    for target, replicas in together.items():
        summed = sum(part[target] for part in apart)
        assert summed <= replicas * (1 + 1e-9)
        if target != "backlog":
            assert summed == pytest.approx(replicas)


def test_no_work_asks_for_no_replica_and_the_least_work_for_some():
    assert set(demand(Work(), TARGETS_OF).values()) == {0}
    assert max(demand(Work(answers=1), TARGETS_OF).values()) > 0


def test_each_target_is_met_by_as_many_replicas_as_it_asks_for():
    assert demand(Work(answers=48), TARGETS_OF)["concurrency"] == 3
    assert demand(Work(kv_load=1.5), TARGETS_OF)["kv"] == 3
    assert demand(Work(queued_seconds=6, queued=10), TARGETS_OF)["backlog"] == 3
    # One long prompt is no faster on three replicas.
    assert demand(Work(queued_seconds=6, queued=1), TARGETS_OF)["backlog"] == 1
    # What arrives is kept up with although nothing waits.
    assert demand(Work(prompts=Prompts(load=3 * PREFILL_USE)), TARGETS_OF)[
        "backlog"
    ] == pytest.approx(3)


def test_a_time_between_tokens_is_kept_by_as_many_answers_as_a_replica_gives_in_it():
    targets = ScalingTargets(tpot_seconds=0.05)
    line = DecodeLine(base=0.02, each=0.001)
    assert demand(Work(answers=90, decode=line), targets)["tpot"] == pytest.approx(3)
    assert demand(Work(answers=90), targets)["tpot"] == 0, "nothing is known yet"
    assert demand(Work(answers=90, decode=line), ScalingTargets())["tpot"] == 0
    # What no replica keeps with one answer alone is not kept by more replicas than answers.
    assert demand(Work(answers=9, decode=DecodeLine(0.1, 0.001)), targets)["tpot"] == 9
