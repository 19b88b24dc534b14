"""Asks a replica again and again how it is, and who."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from pagelet.protocol.replica import ReplicaDescription
from pagelet.router.replicas.change_log import ChangeLog
from pagelet.router.replicas.replica import Health, Replica
from pagelet.router.upstream.client import ConnectFailed, UpstreamTimeout
from pagelet.router.upstream.connection import Headers, UpstreamError

_log = logging.getLogger(__name__)

_TIMEOUT: Final = 3.0
"""For one probe: a busy server may take its time, as long as it answers."""
_SILENT_PROBES: Final = 2
"""Probes in a row without an answer that make a replica hung."""
_MOST_BYTES: Final = 4 << 20
"""Of an answer to a probe."""
_LEARN_NAMES_EVERY: Final = 30
"""Probes of a server of another kind between looks at the names of its models."""


class _Model(msgspec.Struct):
    id: str
    parent: object = None
    """The name of the model that it is an adapter of, as vLLM has it."""


class _Models(msgspec.Struct):
    data: list[_Model]


class Prober:
    """Keeps one replica's health, description and names up to date, until cancelled."""

    def __init__(
        self,
        replica: Replica,
        headers: Headers,
        on_change: Callable[[Replica], None],
        changes: ChangeLog | None,
    ) -> None:
        """`headers` authorise the router. `on_change` is called after every change, also of what
        the replica says about its speed. Its health goes to `changes`."""
        self._replica = replica
        self._headers = headers
        self._on_change = on_change
        self._changes = changes
        self._soon = asyncio.Event()
        self._foreign = False
        self._health_path = "/health"
        self._probes = 0
        self._silent = 0

    def hurry(self) -> None:
        """Probes at once: a request has met with something odd."""
        self._soon.set()

    async def run(self) -> None:
        """Probes at the configured interval."""
        while True:
            try:
                await self._probe()
            except Exception:  # one odd replica must not be asked for the last time
                _log.exception("probe of replica %s", self._replica.id)
            try:
                async with asyncio.timeout(self._replica.options.health_interval):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()

    async def _probe(self) -> None:
        replica = self._replica
        began = asyncio.get_running_loop().time()
        before = self._told()
        try:
            health = await (self._probe_foreign() if self._foreign else self._probe_pagelet())
            self._silent = 0
        except ConnectFailed:
            health = "unreachable"
        except UpstreamTimeout:
            self._silent += 1
            if self._silent < _SILENT_PROBES:
                return
            # Of a server that starts, the port may be held already and nobody answer yet.
            health = "hung" if replica.model_names else "not ready"
        except UpstreamError as error:
            health = "not ready"
            _log.debug("probe of replica %s: %s", replica.id, error)
        if health == "hung":
            silent_since = began - (_SILENT_PROBES - 1) * _TIMEOUT
            replica.upstream.interrupt_silent(UpstreamTimeout("the replica is hung"), silent_since)
        if health != replica.health:
            replica.health = health
            if self._changes is not None:
                level = logging.INFO if health in ("ready", "draining") else logging.WARNING
                self._changes.tell(replica.id, f"is {health}", level)
        if before != self._told():
            self._on_change(replica)

    def _told(self) -> tuple[object, ...]:
        replica = self._replica
        return replica.health, replica.description, replica.model_names, replica.adapters

    async def _probe_pagelet(self) -> Health:
        status, body = await self._get("/v1/replica")
        if status == 404 and self._replica.description is None:
            self._foreign = True
            return await self._probe_foreign()
        if status != 200:
            return "not ready"
        try:
            description = msgspec.json.decode(body, type=ReplicaDescription)
        except msgspec.MsgspecError as error:
            _log.warning("replica %s describes itself wrongly: %s", self._replica.id, error)
            return "not ready"
        self._replica.description = description
        self._replica.model_names = description.served_model_names
        self._replica.adapters = description.adapters
        return "draining" if description.draining else "ready"

    async def _probe_foreign(self) -> Health:
        """Servers of other kinds have `/health`, or at least the list of their models."""
        status, _ = await self._get(self._health_path)
        if status == 404 and self._health_path == "/health":
            self._health_path = "/v1/models"
            return await self._probe_foreign()
        if status != 200:
            return "not ready"
        if not self._replica.model_names or self._probes % _LEARN_NAMES_EVERY == 0:
            status, body = await self._get("/v1/models")
            if status != 200:
                return "not ready"
            try:
                models = msgspec.json.decode(body, type=_Models)
            except msgspec.MsgspecError:
                return "not ready"
            self._replica.model_names = names = [model.id for model in models.data]
            adapters = {each.id: each.id for each in models.data if isinstance(each.parent, str)}
            self._replica.adapters = adapters if len(adapters) < len(names) else {}
        self._probes += 1
        return "ready"

    async def _get(self, path: str) -> tuple[int, bytes]:
        response = await self._replica.upstream.send("GET", path, self._headers, seconds=_TIMEOUT)
        try:
            return response.status, await response.read_all(_TIMEOUT, _MOST_BYTES)
        finally:
            response.close()
