"""Consistent hashing: the same replica for the same key, in every router, without talking.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016): a key goes to the
first replica clockwise whose load is within a factor of the mean. When a replica goes, only its own
keys move.
"""

import bisect
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence

VIRTUAL_NODES = 128
"""Points a replica has on the ring; more make their shares more even."""
HEAD_BLOCKS = 16
"""Blocks of a prompt that `prompt_head` looks at: with 16 tokens a block, the 256 tokens in which
prompts of one template, tenant or conversation are alike."""


def prompt_head(block_hashes: Sequence[bytes], prompt: bytes) -> bytes:
    """A key that is equal for prompts that begin alike: the hash of the chain's 16th block, or of
    the last one of a shorter prompt; of `prompt` (all its bytes) if it has no full block."""
    if block_hashes:
        return block_hashes[min(HEAD_BLOCKS, len(block_hashes)) - 1]
    return hashlib.sha256(prompt).digest()


def _point(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "big")


class HashRing:
    """Replicas on a circle."""

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        self._virtual_nodes = virtual_nodes
        self._points: list[int] = []
        self._owners: list[str] = []
        self._members: set[str] = set()

    def add(self, replica_id: str) -> None:
        """Puts a replica on the ring, if it is not there."""
        if replica_id in self._members:
            return
        self._members.add(replica_id)
        for index in range(self._virtual_nodes):
            point = _point(f"{replica_id}#{index}".encode())
            at = bisect.bisect(self._points, point)
            self._points.insert(at, point)
            self._owners.insert(at, replica_id)

    def remove(self, replica_id: str) -> None:
        """Takes a replica from the ring."""
        self._members.discard(replica_id)
        kept = [
            (point, owner)
            for point, owner in zip(self._points, self._owners, strict=True)
            if owner != replica_id
        ]
        self._points = [point for point, _ in kept]
        self._owners = [owner for _, owner in kept]

    def walk(self, key: bytes) -> Iterator[str]:
        """All replicas, each once, clockwise from the key."""
        start = bisect.bisect(self._points, _point(key))
        seen: set[str] = set()
        size, members = len(self._owners), len(self._members)
        for offset in range(size):
            owner = self._owners[(start + offset) % size]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == members:
                    return

    def bounded(
        self, key: bytes, loads: dict[str, float], factor: float, cost: float = 1.0
    ) -> str | None:
        """The first of the replicas in `loads`, clockwise from the key, that could take `cost`
        more and stay within `factor` of what would then be the mean load (rounded up to whole
        costs); None if `loads` is empty.

        At least one always can: the least loaded.
        """
        if not loads:
            return None
        bound = cost * math.ceil(factor * (sum(loads.values()) / cost + 1) / len(loads))
        fallback = None
        for replica_id in self.walk(key):
            load = loads.get(replica_id)
            if load is None:
                continue
            if load + cost <= bound:
                return replica_id
            fallback = fallback or replica_id
        return fallback

    def first(self, key: bytes, eligible: Callable[[str], bool]) -> str | None:
        """The first eligible replica clockwise from the key."""
        return next(filter(eligible, self.walk(key)), None)
