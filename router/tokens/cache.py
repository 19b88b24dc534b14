"""A cache that is bounded by what its values weigh."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeightedCache(Generic[K, V]):
    """The values used last, within `capacity` bytes. For any number of threads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._weight = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, which has been used with this."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Remembers a value of `weight` bytes, unless that is more than all of the capacity."""
        with self._lock:
            known = self._entries.pop(key, None)
            self._weight += weight - (0 if known is None else known[1])
            self._entries[key] = value, weight
            while self._weight > self._capacity:
                _, (_, gone) = self._entries.popitem(last=False)
                self._weight -= gone
