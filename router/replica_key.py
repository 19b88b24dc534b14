"""The key that replicas ask for, read again whenever its file changes."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from pagelet.process.watched import WatchedPath
from pagelet.protocol.api_keys import BadKey, check_key
from pagelet.router.upstream.connection import Headers

_LOOK_EVERY: Final = 1.0
"""Seconds: as often as replicas look at their own file."""

_log = logging.getLogger(__name__)


class ReplicaKey:
    """While the file cannot be used, the key last seen stays in force."""

    def __init__(self, path: Path | None) -> None:
        """Raises `OSError` or `ValueError` if the file cannot be used at start."""
        self.headers: Headers = []
        """What goes with each request to a replica. It stays the same list, which others hold."""
        self._watched = None if path is None else WatchedPath(path, check_every=0)
        if self._watched is not None and self._watched.changed():
            self.headers += _authorization(self._watched.path)

    def refresh(self) -> None:
        """Reads the file if it changed."""
        if self._watched is None or not self._watched.changed():
            return
        try:
            found = _authorization(self._watched.path)
        except (OSError, ValueError) as error:
            _log.error("the key for replicas is not read, the last stays in force: %s", error)
            return
        if found != self.headers:
            self.headers[:] = found
            _log.info("read a new key for replicas")

    async def keep_fresh(self) -> None:
        """Refreshes for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            await asyncio.to_thread(self.refresh)


def _authorization(path: Path) -> Headers:
    key = path.read_text(encoding="utf-8", errors="replace").strip()
    try:
        check_key(key)
    except BadKey as error:
        raise ValueError(
            f"{path}: put one key there, which replicas take, and nothing else: {error}"
        ) from error
    return [(b"authorization", b"Bearer " + key.encode())]
