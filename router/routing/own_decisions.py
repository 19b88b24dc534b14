"""What a replica probably holds because the router sent it there.

Events tell the truth, but after the fact: until a prompt's blocks are announced, its siblings would
be sent elsewhere. And some replicas send no events. So a request's blocks count as held from the
moment that it is sent, until events confirm them or their time is up.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from pagelet.router.routing.prefix_index import PrefixIndex

CONFIRM_SECONDS = 60.0
"""How long a replica that sends events has to confirm a block."""
KEEP_SECONDS = 600.0
"""How long a block counts as held by a replica that sends no events."""
DEFAULT_CAPACITY = 31_250
"""Blocks of a replica's cache, if it does not say: 500,000 tokens (llm-d's default)."""
_EXPIRED_AT_ONCE = 256
_RENEW = 0.02
"""Share of its time after which a block's time begins anew when it is used."""


class OwnDecisions:
    """The unconfirmed blocks of one replica, oldest first. All of them are in the index too."""

    def __init__(self, index: PrefixIndex, member: str) -> None:
        self._index = index
        self._member = member
        self._expiry: OrderedDict[bytes, float] = OrderedDict()
        self.capacity = DEFAULT_CAPACITY
        self.keep_seconds = KEEP_SECONDS

    def __len__(self) -> int:
        return len(self._expiry)

    def add(self, block_hashes: Sequence[bytes], known: int, now: float) -> None:
        """A prompt was sent, of whose blocks the first `known` are in the index already. Blocks
        that are confirmed stay so; the others live anew (a hot prefix is not renewed each time)."""
        expiry, expires = self._expiry, now + self.keep_seconds
        renewed: list[bytes] = []
        if known:
            oldest = expiry.get(block_hashes[known - 1], expires)
            if oldest < expires - _RENEW * self.keep_seconds:
                renewed = [h for h in block_hashes[:known] if h in expiry]
        fresh = block_hashes[known:]
        self._index.store(self._member, reversed(fresh))
        # Heads last, so that what is dropped first is the tail of a prefix, as in the engine.
        for block_hash in (*reversed(fresh), *reversed(renewed)):
            expiry[block_hash] = expires
            expiry.move_to_end(block_hash)
        if (excess := len(expiry) - self.capacity) > 0:
            self._drop(excess)

    def confirm(self, block_hashes: Iterable[bytes]) -> None:
        """These blocks are known to be held."""
        pop = self._expiry.pop
        for block_hash in block_hashes:
            pop(block_hash, None)

    def retract(self, block_hashes: Iterable[bytes]) -> None:
        """The prompt never got there: what is unconfirmed of it is not held."""
        gone = [h for h in block_hashes if self._expiry.pop(h, None) is not None]
        self._index.discard(self._member, gone)

    def expire(self, now: float) -> None:
        """Drops some of the blocks whose time is up."""
        count = 0
        for expires in self._expiry.values():
            if expires > now or count == _EXPIRED_AT_ONCE:
                break
            count += 1
        if count:
            self._drop(count)

    def clear(self) -> None:
        """Forgets all; the index is the caller's to reset."""
        self._expiry.clear()

    def _drop(self, count: int) -> None:
        self._index.discard(
            self._member, [self._expiry.popitem(last=False)[0] for _ in range(count)]
        )
