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

    Token ids are taken as unsigned 32-bit integers. `extras` comes from `extra_keys_bytes`; it
    enters the first block of a chain and through the parent all that follow.
    """
    digest = hashlib.sha256(parent)
    digest.update(len(extras).to_bytes(4, "little"))
    digest.update(extras)
    digest.update(array.array("I", token_ids).tobytes())
    return digest.digest()


def hash_blocks(
    token_ids: Sequence[int], block_size: int, extras: Sequence[ExtraKey] = ()
) -> list[bytes]:
    """The hashes of all full blocks of a sequence, first to last."""
    parent, tagged, hashes = ROOT, extra_keys_bytes(extras), []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = hash_block(parent, token_ids[start : start + block_size], tagged)
        tagged = b""
        hashes.append(parent)
    return hashes
