"""Which cached blocks follow a block: where no whole block of a prompt is cached any more, the
first tokens of its next one may be, in a block that goes on with others.

A prompt that was computed before then costs one token, not the up to `block_size` of its last block
(SGLang's radix tree finds as much with pages of one token, arXiv 2312.07104).
"""

import array
import itertools
from collections.abc import Iterator, Sequence

from pagelet.protocol.block_hash import hash_block

_MOST_COMPARED = 8
"""Blocks that follow one block, the newest first: a popular head may have thousands."""


class Continuations:
    """Tokens of cached blocks, by the hash of the block before them (or `ROOT`)."""

    def __init__(self) -> None:
        self._after: dict[bytes, dict[bytes, array.array[int]]] = {}
        self._parents: dict[bytes, bytes] = {}

    def add(self, block_hash: bytes, parent: bytes, token_ids: Sequence[int]) -> None:
        """A block is cached."""
        self._after.setdefault(parent, {})[block_hash] = array.array("I", token_ids)
        self._parents[block_hash] = parent

    def remove(self, block_hash: bytes) -> None:
        """A block is cached no longer."""
        parent = self._parents.pop(block_hash)
        siblings = self._after[parent]
        del siblings[block_hash]
        if not siblings:
            del self._after[parent]

    def begin_with(
        self, parent: bytes, token_ids: Sequence[int], extras: bytes
    ) -> Iterator[tuple[bytes, int]]:
        """Hashes of blocks after `parent` that begin with some of `token_ids`, at most a block's,
        and how many, most first. Their `extras`, which `extra_keys_bytes` makes, are these."""
        found = []
        for block_hash, known in itertools.islice(
            reversed(self._after.get(parent, {}).items()), _MOST_COMPARED
        ):
            count = _common_length(known, token_ids)
            if count:
                found.append((count, block_hash, known))
        found.sort(key=lambda each: -each[0])
        for count, block_hash, known in found:
            if hash_block(parent, known, extras) == block_hash:
                yield block_hash, count


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)
