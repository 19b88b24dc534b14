import itertools
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagelet.router.queue.fair_queue import FairQueue

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}
costs = st.floats(1, 1000)


def push(queue, tenant, cost=1.0, priority=0, item=None):
    return queue.push(
        item or tenant, tenant=tenant, weight=WEIGHTS.get(tenant, 1.0), priority=priority, cost=cost
    )


@given(
    queued=st.fixed_dictionaries(
        {name: st.lists(costs, min_size=1, max_size=30) for name in WEIGHTS}
    ),
    order=st.randoms(use_true_random=False),
)
def test_tenants_that_wait_get_tokens_by_their_weights(queued, order):
    """At every moment, any two tenants that have waited from the start differ in tokens over
    weight by at most one largest request of each (Goyal et al., theorem 1)."""
    queue = FairQueue()
    requests = [(name, cost) for name, all_costs in queued.items() for cost in all_costs]
    order.shuffle(requests)
    for name, cost in requests:
        push(queue, name, cost)
    left = {name: len(all_costs) for name, all_costs in queued.items()}
    largest = {name: max(all_costs) / WEIGHTS[name] for name, all_costs in queued.items()}
    served = dict.fromkeys(WEIGHTS, 0.0)
    while all(left.values()):
        entry = queue.pop()
        served[entry.item] += entry.cost / WEIGHTS[entry.item]
        left[entry.item] -= 1
        for one, other in itertools.combinations(WEIGHTS, 2):
            bound = largest[one] + largest[other]
            assert abs(served[one] - served[other]) <= bound + 1e-6


@given(flood=st.integers(1, 300), late=costs)
def test_a_flood_of_one_tenant_delays_another_by_one_request_only(flood, late):
    queue = FairQueue()
    for _ in range(flood):
        push(queue, "flood", 100.0)
    for _ in range(flood // 2):
        queue.pop()
    push(queue, "new", late)
    assert "new" in [queue.pop().item for _ in range(min(2, len(queue)))]


def test_idle_time_earns_no_credit():
    queue = FairQueue()
    for _ in range(50):
        push(queue, "a", 10.0)
        queue.pop()
    for _ in range(20):
        push(queue, "a", 10.0)
        push(queue, "c", 5.0)
    first = Counter(queue.pop().item for _ in range(10))
    assert first["a"] >= 4


def test_priority_orders_the_requests_of_a_tenant_and_no_others():
    queue = FairQueue()
    for priority, item in ((0, "second"), (5, "third"), (-5, "first"), (0, "later second")):
        push(queue, "a", 1.0, priority, item)
    push(queue, "d", 1.0, 100, "other")
    order = [queue.pop().item for _ in range(5)]
    assert order.index("other") <= 1
    order.remove("other")
    assert order == ["first", "second", "later second", "third"]


@given(actual=st.floats(0, 1000).filter(lambda cost: cost % 100))  # without ties
def test_an_estimate_is_corrected(actual):
    """After corrections the order is as if the costs had been known."""
    known, corrected = FairQueue(), FairQueue()
    for queue in (known, corrected):
        push(queue, "a", actual if queue is known else 50.0)
        entry = queue.pop()
        for _ in range(30):
            push(queue, "a", 100.0)
            push(queue, "d", 100.0)
        if queue is corrected:
            queue.correct(entry, actual)
    assert [known.pop().item for _ in range(60)] == [corrected.pop().item for _ in range(60)]


@given(
    queued=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=40),
    newcomer=st.sampled_from(["a", "b", "c", "d"]),
)
def test_a_tenant_within_its_share_finds_one_beyond_its_own(queued, newcomer):
    queue = FairQueue()
    for tenant in queued:
        push(queue, tenant)
    size = len(queued)
    counts = Counter(queued)
    weight = WEIGHTS.get(newcomer, 1.0)
    waiting = sum(WEIGHTS.get(name, 1.0) for name in counts.keys() | {newcomer})
    over = queue.is_over_share(newcomer, weight, size)
    assert over == (counts[newcomer] + 1 > size * weight / waiting)
    if not over:
        victim = queue.longest().item
        assert victim != newcomer
        assert counts[victim] > size * WEIGHTS[victim] / waiting


class AnyOrder(RuleBasedStateMachine):
    """Pushes, pops and removals in any order: what is popped was pushed, once, and is what its
    tenant would send first."""

    def __init__(self):
        super().__init__()
        self.queue = FairQueue()
        self.waiting = {}
        self.popped = []
        self.serial = itertools.count()

    @rule(tenant=st.sampled_from("abcdefgh"), priority=st.integers(-1, 1), cost=costs)
    def push(self, tenant, priority, cost):
        key = (tenant, priority, next(self.serial))
        self.waiting[key] = push(self.queue, tenant, cost, priority, key)

    @precondition(lambda self: self.waiting)
    @rule()
    def pop(self):
        entry = self.queue.pop()
        assert self.waiting.pop(entry.item) is entry
        own = [key for key in self.waiting if key[0] == entry.item[0]]
        assert all(entry.item < key for key in own)
        self.popped.append(entry)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data):
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        entry = self.waiting.pop(key)
        self.queue.remove(entry)
        self.queue.remove(entry)

    @precondition(lambda self: self.popped)
    @rule(cost=costs)
    def correct(self, cost):
        self.queue.correct(self.popped.pop(), cost)

    @invariant()
    def counts(self):
        assert len(self.queue) == len(self.waiting)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=40)


def test_memory_does_not_grow_with_tenants_that_came_and_went():
    queue = FairQueue()
    for number in range(20_000):
        push(queue, f"tenant {number}")
        push(queue, "a")
        queue.remove(push(queue, "b"))
        queue.pop()
        queue.pop()
    assert not queue
    assert len(queue._tenants) < 1000
    assert len(queue._order) < 1000


def test_removed_requests_do_not_stay_in_memory():
    queue = FairQueue()
    push(queue, "a")
    for _ in range(1000):
        queue.remove(push(queue, "a"))
    assert len(queue.pop().tenant.entries) <= 100


def test_nothing_to_pop_is_a_mistake_of_the_caller():
    with pytest.raises(AssertionError, match="nothing waits"):
        FairQueue().pop()


def test_no_request_starves():
    """While others never stop sending, a large request waits for as many tokens of each as it has
    itself, by their weights."""
    queue, ages, worst = FairQueue(), defaultdict(int), 0
    for name in "abcdefgh":
        push(queue, name, 10.0)
    for _ in range(2000):
        name = queue.pop().item
        for other in "abcdefgh":
            ages[other] += 1
        worst = max(worst, ages.pop(name))
        push(queue, name, 10.0 if name != "a" else 1000.0)
    others = sum(WEIGHTS.get(name, 1.0) * 1000 / 10 + 1 for name in "bcdefgh")
    assert 100 < worst <= others + 1
