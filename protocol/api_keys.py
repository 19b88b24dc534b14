"""API keys, as clients present them and as servers keep them: as digests.

SHA-256 and not a slow password hash such as bcrypt: a slow hash makes up for secrets that people
choose and others could guess. A key of ours has 256 random bits, so its digest cannot be turned
back by trying, and it is checked for every request, where a slow hash would cost more than the
request and let anyone exhaust the server with wrong keys.
"""

import hashlib
import re
import secrets
from typing import Final

PREFIX: Final = "pgl-"
"""Tells people, and scanners for leaked secrets, what a key is."""


def new_key() -> str:
    """A key with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


class BadKey(ValueError):
    """No request could present such a key. The message does not tell it."""


def check_key(key: str) -> None:
    """Raises `BadKey` for one that cannot stand in a header, behind a space."""
    wrong = re.search("[^!-~]", key)
    if wrong is not None:
        raise BadKey(
            f"character {wrong.start() + 1} of the key is no visible ASCII character, which no "
            "header can carry as part of a key: take letters, digits and signs"
        )
    if not key:
        raise BadKey("the key is empty")


def key_digest(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def bearer_key(authorization: str | None) -> str | None:
    """The key in an `Authorization: Bearer KEY` header; None if there is none."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
