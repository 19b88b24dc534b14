"""The InferenceServices as they are in the cluster.

kopf's watch tells of changes at once, and a list on a clock is the truth that makes good what a
watch has missed.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from pagelet.operator.kube.client import UNREACHABLE, ApiError, Client
from pagelet.operator.kube.reflector import Key
from pagelet.operator.kube.resources import SERVICES, Object

log = logging.getLogger(__name__)


class Services:
    """Bodies by namespace and name; `changed` is called with the key of each that differs."""

    def __init__(
        self, client: Client, namespaces: list[str | None], changed: Callable[[Key], None]
    ) -> None:
        self._client = client
        self._namespaces = namespaces
        self._changed = changed
        self._bodies: dict[Key, Object] = {}
        self.listed_at: float | None = None
        """When all of them were seen the last time, by `time.monotonic`."""

    def get(self, key: Key) -> Object | None:
        """None: there is no such service."""
        return self._bodies.get(key)

    def all_keys(self) -> list[Key]:
        """Of all of them."""
        return list(self._bodies)

    def first_at_address(self, key: Key) -> Key:
        """Of the services whose Ingress has the class, host and path of this one's, the oldest:
        Ingress controllers usually send it the requests of all."""
        own = self._bodies.get(key)
        address = own and _address(own)
        same = [body for body in self._bodies.values() if address and _address(body) == address]
        same.sort(key=lambda body: (body["metadata"].get("creationTimestamp", ""), _key(body)))
        return _key(same[0]) if same else key

    def saw(self, body: Object) -> None:
        """Takes a body, unless a later one is known: versions are numbers that grow (KEP-5504)."""
        key = _key(body)
        before = self._bodies.get(key)
        if before is None or _version(before) < _version(body):
            self._bodies[key] = body
            if before is None or _asks(before) != _asks(body):
                self._changed(key)

    def saw_deleted(self, body: Object) -> None:
        """What it was made of goes with it: the cluster collects it by its owner."""
        self._remove(_key(body))

    async def relist(self) -> None:
        """Sees all of them. Raises ApiError, and what requests raise."""
        for namespace in self._namespaces:
            bodies, version = await self._client.list_all(SERVICES, namespace)
            for body in bodies:
                self.saw(body)
            seen = {_key(body) for body in bodies}
            for key, body in list(self._bodies.items()):
                gone = key not in seen and namespace in (None, key[0])
                if gone and _version(body) <= int(version):
                    self._remove(key)
        self.listed_at = time.monotonic()

    def _remove(self, key: Key) -> None:
        if self._bodies.pop(key, None) is not None:
            self._changed(key)

    async def keep_listing(self, seconds: float) -> None:
        """Relists and checks every service for ever."""
        while True:
            try:
                await self.relist()
                for key in self.all_keys():
                    self._changed(key)
            except (ApiError, *UNREACHABLE) as error:
                log.warning("cannot list the InferenceServices: %r", error)
                await asyncio.sleep(min(5.0, seconds))
                continue
            await asyncio.sleep(seconds)


def _key(body: Object) -> Key:
    metadata = body["metadata"]
    return metadata["namespace"], metadata["name"]


def _asks(body: Object) -> tuple[object, ...]:
    """Another one if there may be something to do: not if the status alone has changed."""
    metadata = body["metadata"]
    return metadata["uid"], metadata.get("generation"), "deletionTimestamp" in metadata


def _address(body: Object) -> tuple[str | None, ...] | None:
    """Where clients outside of the cluster reach it, by its Ingress."""
    ingress = (body["spec"].get("exposure") or {}).get("ingress")
    return ingress and tuple(ingress.get(field) for field in ("className", "host", "path"))


def _version(body: Object) -> int:
    return int(body["metadata"]["resourceVersion"])
