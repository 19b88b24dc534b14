"""API keys: given on the command line, or in a file that may change while the server runs."""

import hashlib
import hmac
import logging
import time
from collections.abc import Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

_CHECK_EVERY = 1.0
"""Seconds between looks at the key file's modification time."""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class ApiKeys:
    """The keys that may use the server; with none configured, everyone may.

    A key file has one key a line; `#` starts a comment and empty lines are skipped. It is read
    again when it changes, as when Kubernetes updates a mounted Secret. While it cannot be
    read the keys last seen stay in force; an empty file admits no one. Only digests are kept.
    """

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        self._fixed = [_digest(key) for key in keys]
        self._file = file
        self._from_file: list[bytes] = []
        self._version: tuple[int, int, int] | None = None
        self._checked = float("-inf")
        if file is not None:
            self._read(file)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._fixed) or self._file is not None

    def identify(self, authorization: str | None) -> str | None:
        """A short name, safe to log, of the key in an `Authorization: Bearer` header; None if the
        key is not known."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        self._refresh()
        given, known = _digest(key.strip()), False
        for digest in (*self._fixed, *self._from_file):
            known |= hmac.compare_digest(digest, given)
        return given.hex()[:12] if known else None

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._checked < _CHECK_EVERY:
            return
        self._checked = now
        try:
            self._read(self._file)
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("API key file is not readable, the last keys stay in force: %s", error)

    def _read(self, file: Path) -> None:
        status = file.stat()
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if version == self._version:
            return
        lines = file.read_text(encoding="utf-8").splitlines()
        keys = [line.partition("#")[0].strip() for line in lines]
        self._from_file = [_digest(key) for key in keys if key]
        self._version = version
        if self._from_file:
            _log.info("read %d API keys", len(self._from_file))
        else:
            _log.warning("the API key file has no keys: it lets no one in")
