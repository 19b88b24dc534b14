"""Where replicas are: each source tells the whole set, again whenever it has changed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

_log = logging.getLogger(__name__)

_LOOK_EVERY: Final = 0.25
"""Seconds between looks at a file."""


class Endpoint(msgspec.Struct, frozen=True):
    """One replica: who it is, and where it is reached now."""

    id: str
    """The same as long as it is the same process, or pod."""
    url: str
    takes_requests: bool = True
    """False of one that drains, or whose engine starts anew: it is asked only for what it keeps."""


class Discovery(Protocol):
    """A source of endpoints. It never ends by itself, and survives errors of its own: while it
    cannot tell the set, it tells none, and the last one stays in force."""

    def watch(self) -> AsyncIterator[Sequence[Endpoint]]:
        """The full set, now and after each change."""
        ...


class StaticDiscovery:
    """A fixed list of URLs, which are the replicas' ids, too."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._endpoints = [Endpoint(url, url) for url in dict.fromkeys(urls)]

    async def watch(self) -> AsyncIterator[Sequence[Endpoint]]:
        """See `Discovery`."""
        yield self._endpoints


class FileDiscovery:
    """A JSON file with a list of `{"id": ..., "url": ...}`, as local mode writes it, where
    `"takes_requests": false` may stand, too.

    It is best replaced in one step (written beside, then renamed); what cannot be read is tried
    again until it can."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def watch(self) -> AsyncIterator[Sequence[Endpoint]]:
        """See `Discovery`."""
        seen: bytes | None = None
        complained: str | None = None
        while True:
            try:
                data = self._path.read_bytes()
                if data != seen:
                    endpoints = _decode(data)
                    seen, complained = data, None
                    yield endpoints
            except (OSError, ValueError, RecursionError) as error:
                if str(error) != complained:
                    complained = str(error)
                    _log.warning("replicas file %s: %s; waiting for a good one", self._path, error)
            await asyncio.sleep(_LOOK_EVERY)


def _decode(data: bytes) -> list[Endpoint]:
    """Raises `ValueError` (msgspec's errors are some)."""
    endpoints = msgspec.json.decode(data, type=list[Endpoint])
    for attribute in ("id", "url"):
        if len({getattr(endpoint, attribute) for endpoint in endpoints}) < len(endpoints):
            raise ValueError(f"two replicas have the same {attribute}")
    for endpoint in endpoints:
        if not endpoint.id.isprintable():  # clients are told it in a header
            raise ValueError(f"the id {endpoint.id!r} has characters that cannot be shown")
    return endpoints
