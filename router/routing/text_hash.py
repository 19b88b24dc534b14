"""Block hashes of a prompt's text, for replicas whose tokenizer the router does not have."""

import hashlib

CHUNK_BYTES = 64
BYTES_PER_TOKEN = 4
"""What a token of text is taken for."""
TOKENS_PER_CHUNK = CHUNK_BYTES // BYTES_PER_TOKEN
_MOST_CHUNKS = 32_768
"""Of one text, two megabytes: what is alike so far is alike enough, and more would hold the event
loop."""
_ROOT = hashlib.sha256(b"pagelet text hash v1").digest()


def hash_text(text: bytes, salt: bytes = b"") -> list[bytes]:
    """The hashes of the full 64-byte chunks of a prompt's canonical text, each over its parent's;
    of a very long text, those of its beginning.

    A chunk stands for a KV block of 16 tokens. The salt enters the first chunk and through it all
    others.
    """
    parent, hashes = hashlib.sha256(_ROOT + salt).digest(), []
    for start in range(0, len(text) - CHUNK_BYTES + 1, CHUNK_BYTES)[:_MOST_CHUNKS]:
        parent = hashlib.sha256(parent + text[start : start + CHUNK_BYTES]).digest()
        hashes.append(parent)
    return hashes


def estimate_tokens(text: bytes) -> int:
    """How many tokens the text probably is."""
    return -(-len(text) // BYTES_PER_TOKEN)
