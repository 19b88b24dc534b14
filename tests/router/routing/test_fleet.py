"""A pool's replicas: who is chosen, what is learned, what is forgotten."""

import random
import typing
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.protocol.block_hash import hash_blocks
from pagelet.protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from pagelet.protocol.replica import ReplicaDescription
from pagelet.protocol.router import PolicyName, RoutingOptions
from pagelet.router.routing.fleet import Fleet
from pagelet.router.routing.own_decisions import CONFIRM_SECONDS, KEEP_SECONDS
from pagelet.router.routing.ring import prompt_head
from pagelet.router.routing.types import Decision, RouteRequest

BLOCK = 16
NAMES = [f"replica-{number}" for number in range(4)]
POLICIES = typing.get_args(PolicyName)


def describe(**changes: object) -> ReplicaDescription:
    values: dict[str, object] = {
        "incarnation": "1",
        "version": "0",
        "served_model_names": ["m"],
        "max_model_len": 4096,
        "block_size": BLOCK,
        "num_kv_blocks": 10_000,
        "max_num_seqs": 64,
        "enable_prefix_caching": True,
        "data_parallel_size": 1,
        "prefill_tokens_per_second": 1000.0,
        "decode_step_seconds": 0.01,
    }
    return ReplicaDescription(**{**values, **changes})  # type: ignore[arg-type]


def make_fleet(policy: PolicyName = "prefix", **options: typing.Any) -> Fleet:
    fleet = Fleet(RoutingOptions(policy=policy, **options))
    for name in NAMES:
        fleet.add(name, describe())
    return fleet


def make_request(start: int, tokens: int = 320, session: str | None = None) -> RouteRequest:
    prompt = [start] * tokens
    hashes = hash_blocks(prompt, BLOCK)
    head = prompt_head(hashes, repr(prompt).encode())
    return RouteRequest(f"r{start}", hashes, tokens, 16, head, session)


def choose(fleet: Fleet, request: RouteRequest, now: float = 0.0) -> Decision:
    decision = fleet.choose(request, now, eligible=NAMES)
    assert decision is not None
    return decision


def store(
    fleet: Fleet, name: str, request: RouteRequest, rank: int | None = 0, **fields: typing.Any
) -> None:
    event = BlockStored(
        block_hashes=list(request.block_hashes),
        parent_block_hash=None,
        token_ids=[],
        block_size=BLOCK,
        **fields,
    )
    fleet.apply_events(name, KVEventBatch(0.0, [event], rank))


def held(fleet: Fleet, request: RouteRequest, now: float = 0.0) -> dict[str, int]:
    """Blocks of a request that each replica is thought to hold."""
    candidates = choose(fleet, request, now).candidates
    return {c.replica_id: c.hit_tokens // BLOCK for c in candidates if c.hit_tokens}


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25)
@given(data=st.data())
def test_only_eligible_replicas_that_are_not_excluded_are_chosen(
    policy: PolicyName, data: st.DataObject
) -> None:
    fleet = make_fleet(policy)
    some = st.sets(st.sampled_from([*NAMES, "unknown"]))
    for number in range(data.draw(st.integers(1, 15))):
        eligible, excluded = data.draw(some), data.draw(some)
        session = data.draw(st.sampled_from([None, "a", "b"]))
        request = make_request(data.draw(st.integers(0, 2)), session=session)
        decision = fleet.choose(request, number, eligible=eligible, excluded=excluded)
        allowed = (eligible & set(NAMES)) - excluded
        if decision is None:
            assert not allowed
            continue
        assert decision.replica_id in allowed
        assert {c.replica_id for c in decision.candidates} == allowed
        assert decision.reason
        ticket = fleet.dispatch(request, decision, number)
        if data.draw(st.booleans()):
            ticket.on_first_byte(number + 0.5)
            ticket.on_end(number + 0.5, ok=True, actual_hit_tokens=0)


def test_a_request_follows_its_prefix_until_waiting_costs_more() -> None:
    fleet, request = make_fleet(), make_request(1, 1600)
    store(fleet, NAMES[2], request)
    first = choose(fleet, request)
    assert first.replica_id == NAMES[2]
    assert first.predicted_hit_tokens == 1584  # the last block holds the token that is computed
    assert first.reason == "longest cached prefix"
    for number in range(100, 103):  # 4.8 seconds of other work
        decision = choose(fleet, make_request(number, 1600))
        decision.replica_id, decision.predicted_hit_tokens = NAMES[2], 0
        fleet.dispatch(make_request(number, 1600), decision, 0.0)
    spread = choose(fleet, request)
    assert spread.replica_id != NAMES[2]
    note = next(c.note for c in spread.candidates if c.replica_id == NAMES[2])
    assert "later than the best" in note


def test_a_hot_prefix_spreads_to_all() -> None:
    fleet, request = make_fleet(), make_request(1, 1600)
    store(fleet, NAMES[2], request)
    used = Counter[str]()
    for number in range(400):
        decision = choose(fleet, request)
        used[decision.replica_id] += 1
        fleet.dispatch(request, decision, 0.0)
        if number == 3:
            assert len(used) == 1, "it spread before its holder was busy"
    assert set(used) == set(NAMES)


def test_a_popular_prefix_spreads_sooner_while_few_hold_it() -> None:
    def chosen(holders: int, times: int, seconds: float) -> str:
        """Of a prefix that so many hold, each busy for so long, and that came so often."""
        fleet, request = make_fleet(), make_request(1, 1600)
        for name in NAMES[:holders]:
            store(fleet, name, request)
            decision = choose(fleet, request)
            decision.replica_id, decision.predicted_hit_tokens = name, 0
            fleet.dispatch(make_request(2, round(1000 * seconds)), decision, 0.0)
        for _ in range(times):
            choose(fleet, request)
        return choose(fleet, request).replica_id

    # Its computation takes 1.6 s.
    assert chosen(1, 10, 1.4) == NAMES[0]
    assert chosen(1, 300, 0.9) == NAMES[0]
    assert chosen(1, 300, 1.4) not in NAMES[:1]
    assert chosen(2, 300, 1.4) not in NAMES[:2]
    # That is about the share of the four that its share of the requests would keep busy.
    assert chosen(3, 300, 1.4) in NAMES[:3]
    assert chosen(3, 300, 1.7) == NAMES[3]


def test_what_all_prompts_begin_with_spreads_no_conversation() -> None:
    fleet, conversation = make_fleet(), make_request(1, 1600)
    system = RouteRequest("s", conversation.block_hashes[:16], 257, 16, conversation.head)
    for name in NAMES:
        store(fleet, name, system)
    store(fleet, NAMES[0], conversation)
    for _ in range(300):
        choose(fleet, system)
    decision = choose(fleet, conversation)
    decision.replica_id, decision.predicted_hit_tokens = NAMES[0], 0
    fleet.dispatch(make_request(2, 1200), decision, 0.0)  # 1.2 s; elsewhere it would take 1.35
    assert choose(fleet, conversation).replica_id == NAMES[0]


def test_a_sibling_follows_before_any_event_came() -> None:
    fleet, request = make_fleet(), make_request(1)
    decision = choose(fleet, request)
    fleet.dispatch(request, decision, 0.0)
    assert held(fleet, request) == {decision.replica_id: 19}


def test_own_decisions_expire_unless_events_confirm_them() -> None:
    fleet, request, other = make_fleet(), make_request(1), make_request(2)
    for replica in NAMES:
        store(fleet, replica, make_request(9))
    for prompt in (request, other):
        decision = choose(fleet, prompt)
        decision.replica_id = NAMES[0]
        fleet.dispatch(prompt, decision, 0.0).on_end(1.0, ok=True)
    store(fleet, NAMES[0], request)
    later = CONFIRM_SECONDS + 1
    fleet.dispatch(make_request(3), choose(fleet, make_request(3), later), later)
    assert held(fleet, request, later) == {NAMES[0]: 19}
    assert held(fleet, other, later) == {}


def test_replicas_without_events_keep_what_was_sent_to_them_for_longer() -> None:
    fleet, request = make_fleet(), make_request(1)
    decision = choose(fleet, request)
    fleet.dispatch(request, decision, 0.0)
    fleet.dispatch(make_request(3), choose(fleet, make_request(3)), CONFIRM_SECONDS + 1)
    assert held(fleet, request, CONFIRM_SECONDS + 1) == {decision.replica_id: 19}
    later = KEEP_SECONDS + 1
    fleet.dispatch(make_request(4), choose(fleet, make_request(4), later), later)
    assert held(fleet, request, later) == {}


def test_a_request_that_never_arrived_leaves_nothing() -> None:
    fleet, request = make_fleet(), make_request(1)
    ticket = fleet.dispatch(request, choose(fleet, request), 0.0)
    ticket.on_end(1.0, ok=False)
    assert held(fleet, request) == {}
    assert all(state.in_flight == 0 for state in fleet.states(1.0))
    ticket.on_end(1.0, ok=False)
    ticket.on_first_byte(1.0)
    ticket.on_tokens(5, 1.0)
    assert all(state.in_flight == 0 for state in fleet.states(1.0))


def test_events_take_back_and_clear() -> None:
    fleet, request = make_fleet(), make_request(1)
    store(fleet, NAMES[0], request)
    store(fleet, NAMES[1], request)
    gone = BlockRemoved(block_hashes=list(request.block_hashes[5:]))
    fleet.apply_events(NAMES[0], KVEventBatch(0.0, [gone], None))
    assert held(fleet, request) == {NAMES[0]: 5, NAMES[1]: 19}
    fleet.apply_events(NAMES[1], KVEventBatch(0.0, [AllBlocksCleared()]))
    assert held(fleet, request) == {NAMES[0]: 5}
    fleet.apply_events("unknown", KVEventBatch(0.0, [gone]))


def test_blocks_of_sliding_windows_and_slow_tiers_do_not_count() -> None:
    fleet, request = make_fleet(), make_request(1)
    store(fleet, NAMES[0], request, kv_cache_spec_kind="sliding_window", group_idx=1)
    store(fleet, NAMES[1], request, medium="CPU")
    assert held(fleet, request) == {}
    store(fleet, NAMES[0], request, kv_cache_spec_kind="full_attention", group_idx=0)
    gone = BlockRemoved(block_hashes=list(request.block_hashes), group_idx=1)
    fleet.apply_events(NAMES[0], KVEventBatch(0.0, [gone]))
    assert held(fleet, request) == {NAMES[0]: 19}


def test_hashes_of_no_hash_function_fill_no_memory() -> None:
    fleet = make_fleet()
    for long in (b"a" * 33, b"b" * 1_000_000, b""):
        event = BlockStored(
            block_hashes=[long], parent_block_hash=None, token_ids=[], block_size=BLOCK
        )
        fleet.apply_events(NAMES[0], KVEventBatch(0.0, [event], 0))
    assert fleet.num_index_blocks == 0


def test_a_replica_holds_what_any_of_its_ranks_holds() -> None:
    fleet, request = make_fleet(), make_request(1)
    store(fleet, NAMES[0], request, rank=1)
    store(fleet, NAMES[0], request, rank=0)
    gone = BlockRemoved(block_hashes=list(request.block_hashes))
    fleet.apply_events(NAMES[0], KVEventBatch(0.0, [gone], 0))
    assert held(fleet, request) == {NAMES[0]: 19}
    fleet.remove(NAMES[0])
    assert fleet.choose(request, 0.0, eligible=NAMES[:1]) is None


@pytest.mark.parametrize("how", ["reset", "incarnation", "removed"])
def test_what_a_replica_held_is_forgotten(how: str) -> None:
    fleet, request = make_fleet(), make_request(1)
    store(fleet, NAMES[0], request)
    ticket = fleet.dispatch(request, choose(fleet, request), 0.0)
    if how == "reset":
        fleet.reset(NAMES[0])
    elif how == "incarnation":
        fleet.add(NAMES[0], describe(incarnation="2"))
    else:
        fleet.remove(NAMES[0])
        fleet.add(NAMES[0], describe())
    assert held(fleet, request) == {}
    ticket.on_end(1.0, ok=True, actual_hit_tokens=0)  # of the old one: harmless


@pytest.mark.parametrize("noticed", ["before the answers", "after them"])
def test_what_a_dead_engine_held_is_no_lie_of_the_one_after_it(noticed: str) -> None:
    """Killed under load: its requests are answered by an engine that holds nothing."""
    fleet = make_fleet()
    tickets = []
    for number in range(30):
        request = make_request(number)
        store(fleet, NAMES[0], request)
        decision = fleet.choose(request, number, eligible=NAMES[:1])
        assert decision is not None
        assert decision.predicted_hit_tokens
        tickets.append(fleet.dispatch(request, decision, number))
    after = make_request(50)
    if noticed == "before the answers":
        fleet.add(NAMES[0], describe(incarnation="2"))
        store(fleet, NAMES[0], after)
    for ticket in tickets:
        ticket.on_first_byte(30.0)
        ticket.on_end(30.0, ok=True, actual_hit_tokens=0)
    if noticed == "after them":
        fleet.add(NAMES[0], describe(incarnation="2"))
        store(fleet, NAMES[0], after)
    state = fleet.states(31.0)[0]
    assert (state.sends_events, state.trust) == (True, 1.0)
    assert held(fleet, after, 31.0) == {NAMES[0]: 19}


def test_a_new_description_of_the_same_incarnation_forgets_nothing() -> None:
    fleet, request = make_fleet(), make_request(1)
    store(fleet, NAMES[0], request)
    fleet.add(NAMES[0], describe(prefill_tokens_per_second=77.0))
    assert held(fleet, request) == {NAMES[0]: 19}
    assert fleet.states(1.0)[0].prefill_tokens_per_second == 77.0


def test_an_index_that_is_wrong_about_a_prefix_is_put_right() -> None:
    fleet, request = make_fleet(), make_request(1)
    store(fleet, NAMES[0], request)
    for now in range(3):
        assert held(fleet, request) == {NAMES[0]: 19}
        ticket = fleet.dispatch(request, choose(fleet, request, now), now)
        ticket.on_first_byte(now)
        ticket.on_end(now, ok=True, actual_hit_tokens=0)
    assert held(fleet, request) == {}
    assert 0.8 < fleet.states(3.0)[0].trust < 0.9


def test_events_that_lie_are_ignored_for_a_while() -> None:
    fleet = make_fleet()
    for number in range(10):
        request = make_request(number)
        store(fleet, NAMES[0], request)
        decision = choose(fleet, request, number)
        decision.replica_id = NAMES[0]
        ticket = fleet.dispatch(request, decision, number)
        ticket.on_first_byte(number)
        ticket.on_end(number, ok=True, actual_hit_tokens=0)
    assert not fleet.states(10.0)[0].sends_events
    last = make_request(9)
    assert held(fleet, last, 10.0) == {NAMES[0]: 19}, "it was sent there"
    new = make_request(20)
    store(fleet, NAMES[0], new)
    assert held(fleet, new, 10.0) == {}
    later = 10_000.0
    choose(fleet, new, later)
    store(fleet, NAMES[0], new)
    assert held(fleet, new, later) == {NAMES[0]: 19}


def test_an_answer_tells_of_hits_that_no_event_announced() -> None:
    fleet, request = make_fleet(), make_request(1)
    store(fleet, NAMES[0], make_request(9))  # it sends events
    decision = choose(fleet, request)
    decision.replica_id = NAMES[0]
    ticket = fleet.dispatch(request, decision, 0.0)
    ticket.on_end(1.0, ok=True, actual_hit_tokens=10 * BLOCK)
    later = CONFIRM_SECONDS + 1
    decision.predicted_hit_tokens = 0
    fleet.dispatch(make_request(5), decision, later)
    assert held(fleet, request, later) == {NAMES[0]: 10}


def test_the_ring_is_followed_on_where_prompts_are_held_that_were_not_known() -> None:
    """As behind a router that just started: the one before sent them there."""
    request = make_request(1)
    home = choose(make_fleet(), request).replica_id

    def chosen(*answers: int, events: bool = False) -> str:
        """After answers of `home` to unknown prompts, with so many tokens cached of each, and with
        more work there than the request itself is."""
        fleet, now = make_fleet(), 0.0
        if events:
            store(fleet, home, make_request(2))
        for number, cached in enumerate(answers, 100):
            unknown = make_request(number)
            decision = choose(fleet, unknown, now)
            decision.replica_id, decision.predicted_hit_tokens = home, 0
            ticket = fleet.dispatch(unknown, decision, now)
            now += 0.01 + (unknown.num_prompt_tokens - cached) / 1000
            ticket.on_first_byte(now)
            ticket.on_end(now, ok=True, actual_hit_tokens=cached)
        for number, name in enumerate(NAMES, 200):
            decision.replica_id, decision.predicted_hit_tokens = name, 0
            fleet.dispatch(make_request(number, 960 if name == home else 16), decision, now)
        return choose(fleet, request, now).replica_id

    assert chosen(320) == chosen(0) == home
    assert chosen(0, 0, 0, 0, 0, 0, 0) != home, "its cache is empty: it is only late"
    assert chosen(0, 0, 0, 0, 0, 0, 0, 320, 320) == home
    assert chosen(0, events=True) != home, "events tell what it holds"


def test_two_routers_agree_on_a_prompt_that_nobody_holds() -> None:
    one, other = make_fleet(), make_fleet()
    for number in range(50):
        request = make_request(number)
        assert choose(one, request).replica_id == choose(other, request).replica_id


def test_new_prompts_are_shared_by_replicas_that_are_idle_and_alike() -> None:
    """What differs between their estimates is chance."""
    fleet, rng, served = make_fleet(), random.Random(0), Counter[str]()
    for number in range(800):
        request = make_request(number, rng.choice([100, 320, 700]))
        decision = choose(fleet, request, number)
        served[decision.replica_id] += 1
        ticket = fleet.dispatch(request, decision, number)
        seconds = rng.uniform(0.01, 0.05) + request.num_prompt_tokens / 1000
        ticket.on_first_byte(number + seconds)
        ticket.on_end(number + seconds, ok=True, actual_hit_tokens=0)
    assert min(served.values()) > 0.1 * served.total()


def test_memory_is_flat_over_many_requests() -> None:
    fleet = make_fleet(max_index_blocks=5000)
    rng = random.Random(0)
    for number in range(4000):
        request = make_request(number, rng.choice([100, 320, 700]))
        decision = choose(fleet, request, number)
        ticket = fleet.dispatch(request, decision, number)
        ticket.on_first_byte(number + 0.5)
        ticket.on_end(number + 0.5, ok=True, actual_hit_tokens=rng.choice([0, 16]))
        if number % 100 == 50:
            fleet.remove(NAMES[1])
            fleet.add(NAMES[1], describe())
    assert fleet.num_index_blocks <= 5000 + 256
    for replica in fleet._replicas.values():
        assert len(replica.own) <= 10_000  # the cache that it describes
        assert len(replica.shortfalls) <= 1024
        assert not replica.estimator._queue


def test_sessions_stick_and_move_only_when_they_must() -> None:
    fleet = make_fleet("session")
    request = make_request(1, session="s")
    first = choose(fleet, request)
    for _ in range(20):
        fleet.dispatch(request, first, 0.0)
        assert choose(fleet, request).replica_id == first.replica_id
    moved = fleet.choose(request, 0.0, eligible=NAMES, excluded=[first.replica_id])
    assert moved is not None
    assert moved.replica_id != first.replica_id


def test_replicas_that_say_that_they_take_no_time_at_all_do_no_harm() -> None:
    fleet = make_fleet()
    for name in NAMES:
        fleet.add(name, describe(prefill_tokens_per_second=0.0, decode_step_seconds=0.0))
    empty = RouteRequest("r", [], 0, None, b"head")
    fleet.dispatch(empty, choose(fleet, empty), 0.0).on_first_byte(0.0)
    assert choose(fleet, empty).replica_id in NAMES


def test_round_robin_takes_turns() -> None:
    fleet = make_fleet("round_robin")
    assert [choose(fleet, make_request(1)).replica_id for _ in range(6)] == [*NAMES, *NAMES[:2]]


@pytest.mark.parametrize(("policy", "most"), [("least_request", 25), ("power_of_two", 30)])
def test_load_policies_balance(policy: PolicyName, most: int) -> None:
    fleet, used = make_fleet(policy), Counter[str]()
    for _ in range(100):
        decision = choose(fleet, make_request(1))
        used[decision.replica_id] += 1
        fleet.dispatch(make_request(1), decision, 0.0)
    assert max(used.values()) <= most


def test_random_uses_all() -> None:
    fleet = make_fleet("random")
    assert {choose(fleet, make_request(1)).replica_id for _ in range(100)} == set(NAMES)


def test_load_is_counted_in_seconds_of_a_replica_and_the_last_speed_is_remembered() -> None:
    fleet = Fleet(RoutingOptions())
    fleet.add("a", describe(num_kv_blocks=100))  # 1600 tokens, 1000 a second
    request = RouteRequest("r", [], 800, None, b"head")
    decision = fleet.choose(request, 0.0, eligible=["a"])
    assert decision is not None
    ticket = fleet.dispatch(request, decision, 0.0)
    (state,) = fleet.states(0.0)
    assert (state.decoding, state.decode_slots, state.kv_use) == (0, 64, 0.5)
    # 0.8 s of work, in a mean over a minute.
    came = fleet.prompts(0.0)
    assert came.load == pytest.approx(0.8 / 60)
    (((seconds, count)),) = came.sizes
    assert 0.8 <= seconds <= 0.8 * 2**0.5
    assert count == 1
    assert fleet.prompts(600.0).sizes == (), "long ago"
    # Of two prompts one waits.
    other = fleet.dispatch(request, decision, 0.1)
    assert (state.queued_prompts, state.queued_tokens) == (0, 0)
    (state,) = fleet.states(0.1)
    assert (state.queued_prompts, state.queued_tokens) == (1, 800)
    other.on_end(0.2, ok=False)
    ticket.on_first_byte(0.8)
    assert fleet.states(0.8)[0].decoding == 1
    ticket.on_end(1.0, ok=True)
    assert fleet.states(1.0)[0].kv_use == 0
    fleet.remove("a")
    assert fleet.usual_rate == 1000


def test_the_pace_of_answers_is_seen_and_remembered() -> None:
    fleet = Fleet(RoutingOptions())
    assert fleet.decode_line is None
    fleet.add("a", describe(num_kv_blocks=100))
    request = RouteRequest("r", [], 10, None, b"head")
    tickets = []
    for _ in range(2):
        decision = fleet.choose(request, 0.0, eligible=["a"])
        assert decision is not None
        tickets.append(fleet.dispatch(request, decision, 0.0))
    for ticket in tickets:
        ticket.on_first_byte(1.0)
    for ticket in tickets:
        ticket.on_tokens(21, 2.0)
    for ticket in tickets:
        ticket.on_end(3.0, ok=True)
    line = fleet.decode_line
    assert line is not None
    assert line.base + line.each * 1.5 == pytest.approx(0.1)  # 20 tokens in 2 s, one or two at once
    fleet.remove("a")
    assert fleet.decode_line == line
