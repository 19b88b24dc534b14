"""The comparison of policies: what it is made of, and what comes out on virtual time.

The same seed gives the same figures on every machine, so outcomes can be asserted.
"""

import functools
import json
import statistics
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagelet.bench.cli import app
from pagelet.bench.routing.cases import Case, run_case, run_case_apart, simulate_case
from pagelet.bench.routing.command import _Result, _tails_by_load
from pagelet.bench.routing.cost import measure_cost
from pagelet.bench.routing.measure import Figures, medians, percentile
from pagelet.bench.routing.peers import PEERS
from pagelet.bench.routing.replica import Hardware, SimulatedReplica
from pagelet.bench.routing.simulate import Conditions
from pagelet.bench.routing.traces import TRACES, WARM_UP, Item, make_items
from pagelet.protocol.block_hash import hash_blocks

SECONDS = 12.0
CAPACITY = 4 * Hardware().tokens_per_second


AS_IT_SHOULD = Conditions()


@functools.cache
def figures(
    trace: str, policy: str, load: float = 0.7, conditions: Conditions = AS_IT_SHOULD
) -> Figures:
    """Of four replicas."""
    case = Case(trace, load, policy, 4, SECONDS, conditions=conditions)
    return run_case(case, seed=1)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_a_trace_has_the_work_that_was_asked_for(trace: object) -> None:
    assert trace in TRACES
    seconds = 100.0
    items = make_items(trace, 0, seconds, 0.5, CAPACITY)  # type: ignore[arg-type]
    assert items == make_items(trace, 0, seconds, 0.5, CAPACITY)  # type: ignore[arg-type]
    assert items != make_items(trace, 1, seconds, 0.5, CAPACITY)  # type: ignore[arg-type]
    measured = [item for item in items if _first(item).arrival >= WARM_UP]
    shared = {id(item.parts[0]): len(item.parts[0]) for item in measured if len(item.parts) > 1}
    work = sum(item.ideal_tokens for item in measured)
    if trace.name == "come-and-go":  # type: ignore[attr-defined]
        work += sum(shared.values())
    assert work / (0.5 * CAPACITY * seconds) == pytest.approx(1.0, abs=0.2)


def _first(item: Item) -> Item:
    return item if item.after is None else _first(item.after)


def test_a_later_turn_repeats_the_conversation() -> None:
    trace = next(trace for trace in TRACES if trace.name == "multi-turn")
    for item in make_items(trace, 0, 5.0, 0.5, CAPACITY):
        if item.after is not None:
            before = item.after.prompt() + item.after.answer
            assert item.prompt()[: len(before)] == before
            assert item.session == item.after.session


def test_a_replica_serves_caches_and_refuses() -> None:
    hardware = Hardware(max_waiting=2)
    replica = SimulatedReplica("one", hardware)
    item = Item(0.0, [list(range(400))], [7, 8, 9], 403)
    prompt = item.prompt()
    hashes = hash_blocks(prompt, hardware.block_size)
    assert replica.submit(1, item, prompt, hashes)
    now, progress, stored = 0.0, [], 0
    alone = replica.exact_ttft(0.0, 400, [])
    while replica.begin_step(now):
        took = replica.step_ends - now
        now = replica.step_ends
        brought, events = replica.end_step()
        stored += len(events)
        progress += [(now, entry) for entry in brought]
    assert took == pytest.approx(hardware.step(1))
    assert stored
    assert sum(entry.num_tokens for _, entry in progress) == 3
    assert [entry.finished for _, entry in progress] == [False, False, True]
    assert progress[0][0] == pytest.approx(hardware.step(256) + hardware.step(144))
    assert alone >= progress[0][0]
    assert replica.exact_hit_tokens(hashes) == 400
    for key in (2, 3):
        assert replica.submit(key, item, prompt, hashes)
    assert not replica.submit(4, item, prompt, hashes)
    assert replica.begin_step(now)
    brought, _ = replica.end_step()
    assert brought[0].num_cached_tokens == 399  # the last token is always computed


def test_a_run_is_the_same_every_time_and_loses_nothing() -> None:
    case = Case("multi-turn", 0.5, "prefix", 2, 4.0)
    one, other = simulate_case(case, 3), simulate_case(case, 3)
    assert [o.ttft for o in one.outcomes] == [o.ttft for o in other.outcomes]
    assert all(o.finished is not None and not o.refused for o in one.outcomes)
    assert run_case_apart(case, 3) == run_case(case, 3)


@pytest.mark.parametrize("trace", ["shared-prefix", "multi-turn", "come-and-go"])
def test_prefix_is_close_to_the_oracle_where_prefixes_are_shared(trace: str) -> None:
    ours, oracle = figures(trace, "prefix"), figures(trace, "oracle")
    assert ours.hit_rate > oracle.hit_rate - 0.03
    assert ours.ttft_p99 < 1.5 * oracle.ttft_p99
    assert ours.goodput > 0.98 * oracle.goodput


@pytest.mark.parametrize("trace", ["shared-prefix", "multi-turn"])
@pytest.mark.parametrize("other", ["chwbl", "round_robin"])
def test_prefix_beats_the_others_by_a_fifth(trace: str, other: str) -> None:
    assert figures(trace, "prefix").ttft_p99 < 0.8 * figures(trace, other).ttft_p99


def test_nothing_is_lost_where_nothing_is_shared() -> None:
    ours = figures("nothing-shared", "prefix")
    for other in ("round_robin", "least_request", "power_of_two", "chwbl", "random"):
        assert ours.ttft_p99 < 1.05 * figures("nothing-shared", other).ttft_p99
    assert ours.ttft_p99 < 1.2 * figures("nothing-shared", "oracle").ttft_p99
    assert ours.imbalance < 1.1


@pytest.mark.parametrize(
    "conditions",
    [
        Conditions(events=False),
        Conditions(events_delay=2.0),
        Conditions(events_lost=0.5),
        Conditions(restarts=3),
        Conditions(num_routers=2),
        Conditions(num_routers=2, events=False),
        Conditions(described=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("trace", ["shared-prefix", "multi-turn"])
def test_prefix_is_never_worse_than_chwbl(trace: str, conditions: Conditions) -> None:
    ours = figures(trace, "prefix", conditions=conditions)
    blind = figures(trace, "chwbl", conditions=conditions)
    assert ours.ttft_p99 < 1.05 * blind.ttft_p99
    assert ours.hit_rate > blind.hit_rate - 0.03


def test_a_new_router_that_no_events_tell_anything_recovers() -> None:
    """Its prefixes are where the last router's load was, not always where the ring points, as
    those of chwbl are: it is not later than chwbl all the same."""
    conditions = Conditions(restarts=1, events=False)
    cases = [
        Case("shared-prefix", 0.7, policy, 4, SECONDS, conditions=conditions)
        for policy in ("prefix", "chwbl")
    ]
    ours, blind = (medians([run_case(case, seed) for seed in (1, 2, 3)]) for case in cases)
    assert ours.hit_rate > blind.hit_rate - 0.02
    assert ours.ttft_p99 < 1.05 * blind.ttft_p99


@pytest.mark.parametrize("forged_claims", [1, 4])
def test_lying_events_are_noticed_and_then_ignored(forged_claims: int) -> None:
    """Once it was noticed, routing by own decisions is still better than without an index."""
    p99s = []
    for policy in ("prefix", "chwbl"):
        conditions = Conditions(forged_claims=forged_claims)
        case = Case("shared-prefix", 0.5, policy, 4, 20.0, conditions=conditions)
        tails = []
        for seed in (1, 2, 3):
            outcomes = simulate_case(case, seed).outcomes
            late = [o.ttft for o in outcomes if o.arrived > 20.0 and o.ttft is not None]
            tails.append(percentile(sorted(late), 0.99))
        p99s.append(statistics.median(tails))
    assert p99s[0] < p99s[1]


@pytest.mark.parametrize(
    ("trace", "replicas", "hardware", "seconds"),
    [
        ("multi-turn", 4, Hardware(), SECONDS),
        # A tail of bursts needs some of them.
        ("hot-prefix", 8, Hardware(0.08, 0.24 / 512, num_blocks=4096), 30.0),
    ],
)
def test_prefix_is_no_later_than_the_peers(
    trace: str, replicas: int, hardware: Hardware, seconds: float
) -> None:
    """Medians of three seeds each; closer than a tenth is level."""
    tails = {}
    for policy in ("prefix", *PEERS):
        case = Case(trace, 0.7, policy, replicas, seconds, hardware=hardware)
        tails[policy] = medians([run_case(case, seed) for seed in (1, 2, 3)]).ttft_p99
    assert tails["prefix"] < 1.1 * min(tails.values()), tails


def test_a_slow_replica_gets_less() -> None:
    case = Case("nothing-shared", 0.5, "prefix", 4, SECONDS, conditions=Conditions(slow_replicas=1))
    served = Counter(o.replica for o in simulate_case(case, 0).outcomes)
    assert served[0] < 0.6 * statistics.fmean(served[number] for number in (1, 2, 3))


def test_medians_and_percentiles() -> None:
    one = Figures(0.1, 1, 2, 0.9, 0, 1, 0, 0)
    assert medians([one, one, Figures(0.9, 9, 9, 0.1, 1, 9, 1, 9)]) == one
    ordered = [float(number) for number in range(100)]
    assert (percentile(ordered, 0.5), percentile(ordered, 0.99)) == (50.0, 99.0)
    assert percentile([3.0], 0.99) == 3.0


def test_a_choice_has_a_cost() -> None:
    cost = measure_cost(replicas=4, prompt_tokens=640)
    assert 0 < cost.choose_p50 <= cost.choose_p99


def test_the_command_compares_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "routing.json"
    arguments = "routing --policy oracle --policy random --trace nothing-shared --load 0.5"
    arguments += f" --seconds 1 --seeds 2 --replicas 2 --events-lost 0.1 --json {file}"
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 0, result.output
    assert "oracle" in result.output
    document = json.loads(file.read_text())
    assert [case["policy"] for case in document["cases"]] == ["oracle", "random"]
    assert document["cases"][0]["conditions"]["events_lost"] == 0.1
    assert 0 < document["cases"][0]["figures"]["ttft_p99"] < 10


def test_tails_by_load_say_what_the_default_gains() -> None:
    def result(policy: str, load: float, p99: float) -> _Result:
        figures = Figures(0.5, 0.1, p99, 1, 0, 1, 0, 0)
        return _Result(Case("multi-turn", load, policy), figures, (p99, p99))

    tails = {"oracle": (0.1, 0.2), "prefix": (0.8, 3.3), "chwbl": (1.0, 4.0), "random": (2.0, 3.0)}
    results = [
        result(policy, load, p99)
        for policy, p99s in tails.items()
        for load, p99 in zip((0.5, 0.9), p99s, strict=True)
    ]
    (table,) = _tails_by_load(results)
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert [str(column.header) for column in table.columns] == ["policy", "0.5", "0.9"]
    assert rows[1] == ("prefix", "800", "3,300")
    assert rows[-1] == ("prefix below the best other", "20%", "-10%")
    (without,) = _tails_by_load([each for each in results if each.case.policy != "prefix"])
    assert without.row_count == 3
    assert not list(_tails_by_load([each for each in results if each.case.load == 0.5]))


def test_the_command_names_what_it_knows() -> None:
    result = CliRunner().invoke(app, ["routing", "--policy", "best"])
    assert result.exit_code == 2
    assert "power_of_two" in result.output
