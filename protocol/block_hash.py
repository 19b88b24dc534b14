"""Block hashes: the key under which a full KV block is cached, the same in engine and router.

A block's hash is sha256 over its parent's hash, its token ids and its extra keys. Each part is
length-prefixed and tagged, so that no two different inputs serialise to the same bytes: a LoRA
name can never pass for a salt (vllm-project/vllm#44701), and the digest cannot be predicted or
collided as with Python's `hash` (GHSA-rm76-4mrf-v9r8).
"""

import array
import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

ExtraKey = tuple[Literal["salt", "adapter"], str]
ROOT = hashlib.sha256(b"pagelet block hash v1").digest()


def extra_keys_bytes(extras: Iterable[ExtraKey]) -> bytes:
    """Serialises extra keys, each as tag and value with their lengths."""
    parts = []
    for tag, value in extras:
        for item in (tag.encode(), value.encode()):
            parts.append(len(item).to_bytes(4, "little"))
            parts.append(item)
    return b"".join(parts)


def hash_block(parent: bytes, token_ids: Sequence[int], extras: bytes = b"") -> bytes:
    """The 32-byte hash of one full block, given the hash of the block before it (or `ROOT`).

    Token ids are taken as unsigned 32-bit integers. `extras` comes from `extra_keys_bytes`; what
    enters one block of a chain enters through the parent all that follow.
    """
    digest = hashlib.sha256(parent)
    digest.update(len(extras).to_bytes(4, "little"))
    digest.update(extras)
    digest.update(array.array("I", token_ids).tobytes())
    return digest.digest()


def place_extra_keys(
    extras: Iterable[ExtraKey], block_size: int, shared_tokens: int = 0
) -> dict[int, list[ExtraKey]]:
    """Which extra keys enter which block of a sequence, by the block's index: all of them the first
    block, but a salt the first block that does not lie wholly within the first `shared_tokens`
    tokens. Those before it are the same for every salt."""
    salted = shared_tokens // block_size
    places: dict[int, list[ExtraKey]] = {}
    for key in extras:
        places.setdefault(salted if key[0] == "salt" else 0, []).append(key)
    return places


def hash_blocks(
    token_ids: Sequence[int],
    block_size: int,
    extras: Sequence[ExtraKey] = (),
    shared_tokens: int = 0,
) -> list[bytes]:
    """The hashes of all full blocks of a sequence, first to last. Blocks that lie wholly within the
    first `shared_tokens` tokens have the same hash whatever the salt."""
    places = place_extra_keys(extras, block_size, shared_tokens)
    parent, hashes = ROOT, []
    for index in range(len(token_ids) // block_size):
        tokens = token_ids[index * block_size : (index + 1) * block_size]
        parent = hash_block(parent, tokens, extra_keys_bytes(places.get(index, ())))
        hashes.append(parent)
    return hashes
