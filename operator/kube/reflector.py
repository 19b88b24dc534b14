"""What a selection of objects is now: listed, then watched for some minutes, then listed again.

The list is the truth and the watch only makes it fast: a watch that misses something, or falls
silent, is made good by the next list.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

import aiohttp

from pagelet.operator.kube.client import UNREACHABLE, ApiError, Client, NotFound
from pagelet.operator.kube.resources import Object, Resource

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_ABSENT_PAUSE: Final = 60.0
"""Until it is looked again whether the cluster has a kind that it did not have."""

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name."""


class Reflector:
    """Keeps `objects` as they are in the cluster, as long as `run` runs.

    `changed(before, after)` is called for each difference; one of them is None for an object that
    is new or gone. `keep` says what of an object is kept in memory.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str | None,
        changed: Callable[[Object | None, Object | None], None],
        *,
        keep: Callable[[Object], Object] = lambda found: found,
        label_selector: str | None = None,
        relist_seconds: int = 240,
    ) -> None:
        self.resource = resource
        self.objects: dict[Key, Object] = {}
        self.listed = asyncio.Event()
        """Set once `objects` is complete."""
        self.listed_at: float | None = None
        """When it was complete the last time, by `time.monotonic`."""
        self._versions: dict[Key, int] = {}
        self._client = client
        self._namespace = namespace
        self._changed = changed
        self._keep = keep
        self._selectors = {} if label_selector is None else {"labelSelector": label_selector}
        self._relist_seconds = relist_seconds

    async def run(self) -> None:
        """Never returns."""
        pause = _FIRST_PAUSE
        while True:
            try:
                version = await self._list()
                pause = _FIRST_PAUSE
                await self._watch(version)
                continue
            except NotFound:  # such as HTTPRoute where there is no Gateway API
                self._replace({})
                await asyncio.sleep(min(_ABSENT_PAUSE, self._relist_seconds))
                continue
            except aiohttp.SocketTimeoutError:
                log.debug("the watch of %s fell silent", self.resource.plural)
            except ApiError as error:
                if error.code != 410:
                    log.warning("cannot watch %s: %s", self.resource.plural, error)
            except UNREACHABLE as error:
                log.warning("cannot reach the API server for %s: %r", self.resource.plural, error)
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _list(self) -> str:
        found, version = await self._client.list_all(
            self.resource, self._namespace, **self._selectors
        )
        self._replace({_key(one): one for one in found})
        return version

    def _replace(self, found: dict[Key, Object]) -> None:
        for key in self.objects.keys() - found.keys():
            self._remove(key)
        for key, one in found.items():
            self._put(key, one)
        self.listed_at = time.monotonic()
        self.listed.set()

    async def _watch(self, version: str) -> None:
        # Not all kinds at the same moment.
        seconds = round(self._relist_seconds * random.uniform(0.8, 1))
        changes = self._client.watch(
            self.resource, self._namespace, version, seconds, **self._selectors
        )
        async for kind, found in changes:
            if kind == "DELETED":
                self._remove(_key(found))
            else:
                self.saw(found)

    def saw(self, found: Object) -> None:
        """Takes an object, such as the answer to a change of our own, unless a later state of it is
        known: versions are numbers that grow (KEP-5504)."""
        self._put(_key(found), found)

    def _put(self, key: Key, found: Object) -> None:
        version = int(found["metadata"]["resourceVersion"])
        if version < self._versions.get(key, 0):
            return
        self._versions[key] = version
        before, kept = self.objects.get(key), self._keep(found)
        if before != kept:
            self.objects[key] = kept
            self._changed(before, kept)

    def _remove(self, key: Key) -> None:
        self._versions.pop(key, None)
        before = self.objects.pop(key, None)
        if before is not None:
            self._changed(before, None)


def _key(found: Object) -> Key:
    metadata = found["metadata"]
    return metadata["namespace"], metadata["name"]
