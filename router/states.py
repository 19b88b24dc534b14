"""A worker goes over to another configuration while it serves, and no request notices.

Requests keep the state in which they began: its replicas, limits and keys. A new configuration is a
new state; once it has found its replicas, new requests are its own, and the old one ends with its
last request.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from pagelet.process.watched import WatchedPath
from pagelet.protocol.router import RouterConfig
from pagelet.router.models import PoolRef
from pagelet.router.state import RouterState
from pagelet.router.tenants.counters import CounterTable

_log = logging.getLogger(__name__)

_LOOK_EVERY: Final = 0.5
_FIND_SECONDS: Final = 10.0
"""Most seconds that a new state gets to find the replicas that the old one had."""
_POLL_SECONDS: Final = 0.02

PoolName = tuple[str | None, str]
"""Names of the model and of the pool, which stay when another configuration numbers them anew."""


class States:
    """The state in force, and those before it that still have requests. Owned by one event loop."""

    def __init__(self, state: RouterState) -> None:
        self.current = state
        self._running: dict[RouterState, asyncio.Task[None]] = {}
        self._replaced: dict[RouterState, asyncio.Event] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the state in force, whichever it is, until left."""
        await self._start(self.current)
        try:
            yield
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def replace(self, state: RouterState) -> None:
        """Puts another state in force, once it has found the replicas that the old one had."""
        before = self.current
        await self._start(state)
        await _find_replicas(state, before)
        state.draining = before.draining
        self.current = state
        self._replaced[before].set()

    async def drain(self, most_seconds: float) -> bool:
        """From now on new requests are refused. Whether all that are open finished in time."""
        self._hurry_bodies()
        states = [state.drain(most_seconds) for state in self._running]
        return all(await asyncio.gather(*states))

    async def finish(self, most_seconds: float) -> bool:
        """Whether all requests that are open finished in time."""
        self._hurry_bodies()
        states = [state.finish(most_seconds) for state in self._running]
        return all(await asyncio.gather(*states))

    def _hurry_bodies(self) -> None:
        for state in self._running:
            state.hurry_bodies()

    async def _start(self, state: RouterState) -> None:
        started = asyncio.Event()
        self._replaced[state] = asyncio.Event()
        self._running[state] = asyncio.create_task(self._run(state, started))
        await started.wait()

    async def _run(self, state: RouterState, started: asyncio.Event) -> None:
        async with state.running():
            started.set()
            await self._replaced[state].wait()
            await state.wait_idle()
        del self._running[state], self._replaced[state]


async def follow_file(states: States, path: Path, counters: CounterTable) -> None:
    """Takes a configuration file over whenever it changes, until cancelled. One that cannot work
    changes nothing."""
    watched = WatchedPath(path, check_every=0.0)
    while True:
        if watched.changed():
            try:
                config = _read(path)
                if config != states.current.config:
                    await states.replace(RouterState(config, counters, states.current))
                    _log.info("%s has changed and is in force", path)
            except (OSError, ValueError) as error:  # msgspec's errors are some
                _log.error("%s: %s; the configuration before it stays in force", path, error)
            except Exception:  # the next one may be right
                _log.exception("%s: the configuration before it stays in force", path)
        await asyncio.sleep(_LOOK_EVERY)


def _read(path: Path) -> RouterConfig:
    return msgspec.json.decode(path.read_bytes(), type=RouterConfig)


async def _find_replicas(state: RouterState, before: RouterState) -> None:
    """Waits until each pool that had replicas, and the tokenizer of its prompts, has them again,
    and until those that keep responses are known as such."""
    known = set(_names(state).values())
    wanted = {each for each in _equipped(before) if each[0] in known}
    keepers = {replica.endpoint.url for replica in before.all_replicas if replica.keeps_responses}

    def found() -> bool:
        unknown = {r.endpoint.url for r in state.all_replicas if r.health == "unknown"}
        return wanted <= _equipped(state) and not unknown & keepers

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FIND_SECONDS):
            while not found():  # noqa: ASYNC110 (several things are waited for)
                await asyncio.sleep(_POLL_SECONDS)


def _equipped(state: RouterState) -> set[tuple[PoolName, str]]:
    """What each pool has to answer with."""
    names, found = _names(state), set()
    for ref in state.available:
        found.add((names[ref], "a replica"))
        if state.tokenisers[ref].digest is not None:
            found.add((names[ref], "a tokenizer"))
    return found


def _names(state: RouterState) -> dict[PoolRef, PoolName]:
    routes = state.config.models
    return {
        ref: (routes[ref.route].name, routes[ref.route].pools[ref.pool].name) for ref in state.pools
    }
