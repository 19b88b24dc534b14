"""The order of waiting requests: fair among tenants by the tokens that they cost.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with tokens for bytes, which for language
models is the virtual token counter of Sheng et al. (OSDI 2024). Each tenant has a counter of tokens
over weight; the tenant with the least goes next. Who comes back after a pause starts from the
counter of the one served last, so that idle time earns no credit. What a request will cost is
estimated, and corrected when it is known.

While two tenants both wait, what they get, over their weights, differs by at most the cost of one
request of each, however many requests either has queued.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
_SLACK: Final = 64
"""Entries that are no longer wanted and may lie in a heap beyond half of it."""


class _Tenant(Generic[Item]):
    """The requests and the counter of one tenant."""

    __slots__ = ("counter", "entries", "name", "queued", "version", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.counter = 0.0
        """Virtual time at which its next request starts."""
        self.queued = 0
        self.entries: list[tuple[int, int, Entry[Item]]] = []
        """A heap by priority, then arrival; also of entries that were removed."""
        self.version = 0
        """Of its place among the tenants; older places do not count."""


@dataclasses.dataclass(slots=True, eq=False)
class Entry(Generic[Item]):
    """One request in the queue."""

    item: Item
    cost: float
    tenant: _Tenant[Item]
    queued: bool = True


class FairQueue(Generic[Item]):
    """Pushing and popping take O(log n); removing takes O(1), amortised."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[Item]] = {}
        self._order: list[tuple[float, int, int, _Tenant[Item]]] = []
        """A heap of (counter, serial, version, tenant)."""
        self._serial = itertools.count()
        self._virtual_time = 0.0
        self._length = 0
        self._weight_waiting = 0.0
        self._sweep_at = 2 * _SLACK

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        """All that wait, in no order."""
        for state in self._tenants.values():
            yield from (entry.item for _, _, entry in state.entries if entry.queued)

    def push(
        self, item: Item, *, tenant: str, weight: float, priority: int, cost: float
    ) -> Entry[Item]:
        """Adds a request of `cost` tokens. Within a tenant the lowest `priority` goes first."""
        state = self._tenants.get(tenant)
        if state is None:
            self._sweep()
            state = self._tenants[tenant] = _Tenant(tenant)
        if not state.queued:
            state.counter = max(state.counter, self._virtual_time)
            state.weight = weight
            self._weight_waiting += weight
            self._place(state)
        entry = Entry(item, cost, state)
        heapq.heappush(state.entries, (priority, next(self._serial), entry))
        state.queued += 1
        self._length += 1
        return entry

    def pop(self) -> Entry[Item]:
        """Takes out the request that is next, and charges its tenant for it."""
        assert self._length, "nothing waits"
        while True:
            counter, _, version, state = heapq.heappop(self._order)
            if version == state.version and state.queued:
                break
        while True:
            _, _, entry = heapq.heappop(state.entries)
            if entry.queued:
                break
        self._virtual_time = max(self._virtual_time, counter)
        self._leave(entry)
        state.counter += entry.cost / state.weight
        if state.queued:
            self._place(state)
        return entry

    def remove(self, entry: Entry[Item]) -> None:
        """Takes out a request that no longer waits; nothing is charged."""
        if not entry.queued:
            return
        state = entry.tenant
        self._leave(entry)
        if len(state.entries) > 2 * state.queued + _SLACK:
            state.entries = [item for item in state.entries if item[2].queued]
            heapq.heapify(state.entries)

    def correct(self, entry: Entry[Item], cost: float) -> None:
        """Charges what a request that was popped has really cost, in place of the estimate."""
        assert not entry.queued
        state = entry.tenant
        state.counter += (cost - entry.cost) / state.weight
        entry.cost = cost
        if state.queued:
            self._place(state)

    def is_over_share(self, tenant: str, weight: float, size: int) -> bool:
        """Whether one more request would give a tenant more than its share of `size` places,
        by the weights of all that wait."""
        state = self._tenants.get(tenant)
        if state is None or not state.queued:
            return self._weight_waiting + weight > size * weight
        return (state.queued + 1) * self._weight_waiting > size * state.weight

    def longest(self) -> Entry[Item]:
        """The request that costs least to give up: the last of the tenant that has most waiting,
        over its weight."""
        assert self._length, "nothing waits"
        state = max(self._tenants.values(), key=lambda tenant: tenant.queued / tenant.weight)
        return max(item for item in state.entries if item[2].queued)[2]

    def _leave(self, entry: Entry[Item]) -> None:
        state = entry.tenant
        entry.queued = False
        state.queued -= 1
        self._length -= 1
        if not state.queued:
            self._weight_waiting -= state.weight
            state.entries.clear()
        if not self._length:
            self._weight_waiting = 0.0  # without what rounding left of it

    def _place(self, state: _Tenant[Item]) -> None:
        """Puts a tenant that waits where its counter belongs."""
        state.version += 1
        heapq.heappush(self._order, (state.counter, next(self._serial), state.version, state))
        if len(self._order) > 2 * len(self._tenants) + _SLACK:
            self._order = [
                place for place in self._order if place[2] == place[3].version and place[3].queued
            ]
            heapq.heapify(self._order)

    def _sweep(self) -> None:
        """Forgets tenants that would start from the virtual time anyway, now and then."""
        if len(self._tenants) < self._sweep_at:
            return
        self._tenants = {
            name: state
            for name, state in self._tenants.items()
            if state.queued or state.counter > self._virtual_time
        }
        self._sweep_at = 2 * len(self._tenants) + 2 * _SLACK
