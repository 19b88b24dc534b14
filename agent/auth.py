"""API keys: given on the command line, or in a file that may change while the server runs."""

import hmac
import logging
from collections.abc import Sequence
from pathlib import Path

from pagelet.process.watched import WatchedPath
from pagelet.protocol.api_keys import BadKey, bearer_key, check_key, key_digest

_log = logging.getLogger(__name__)


class ApiKeys:
    """The keys that may use the server; with none configured, everyone may.

    A key file has one key a line; `#` starts a comment and empty lines are skipped. It is read
    again when it changes, as when Kubernetes updates a mounted Secret. While it cannot be
    used the keys last seen stay in force; an empty file admits no one. Only digests are kept.
    """

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        """Raises `OSError` or `UnicodeDecodeError` if the file cannot be read, and `BadKey` if it
        holds what is none."""
        self._fixed = [key_digest(key) for key in keys]
        self._from_file: list[bytes] = []
        self._broken = False
        self._watched = None if file is None else WatchedPath(file)
        if self._watched is not None and self._watched.changed():
            self._read(self._watched.path)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._fixed) or self._watched is not None

    @property
    def broken(self) -> bool:
        """Whether the file cannot be used now, so that its last keys stay in force."""
        self._refresh()
        return self._broken

    def identify(self, authorization: str | None, api_key: str | None = None) -> str | None:
        """A short name, safe to log, of the key in `Authorization: Bearer KEY`, or else in
        `x-api-key`, where clients of Anthropic's API put it; None if the key is not known."""
        key = bearer_key(authorization) or api_key
        if key is None:
            return None
        self._refresh()
        given, known = key_digest(key), False
        for digest in (*self._fixed, *self._from_file):
            known |= hmac.compare_digest(digest, given)
        return given.hex()[:12] if known else None

    def _refresh(self) -> None:
        if self._watched is None or not self._watched.changed():
            return
        try:
            self._read(self._watched.path)
        except (OSError, UnicodeDecodeError, BadKey) as error:
            self._broken = True
            _log.warning("API key file cannot be used, the last keys stay in force: %s", error)

    def _read(self, file: Path) -> None:
        digests = []
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            if key := line.partition("#")[0].strip():
                try:
                    check_key(key)
                except BadKey as error:
                    raise BadKey(f"line {number}: {error}") from None
                digests.append(key_digest(key))
        self._from_file = digests
        self._broken = False
        if self._from_file:
            _log.info("read %d API keys", len(self._from_file))
        else:
            _log.warning("the API key file has no keys: it lets no one in")
