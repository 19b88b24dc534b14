"""A worker process: `python -m pagelet.router.serve --config-fd N`, started by the supervisor.

`DRAIN_SIGNAL` makes it refuse new requests, wait for those that run, and exit with code 0; with
code 1 if some of them had to be cut off. SIGTERM does the same to the only worker; one of several
leaves new connections to the others instead, and refuses nothing. `CUT_OFF` ends requests with an
error at once.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from pagelet.process.child import ParentLink
from pagelet.process.http_server import HTTPServer
from pagelet.process.logs import configure_logging
from pagelet.process.signals import CUT_OFF
from pagelet.router.http.app import RouterApp
from pagelet.router.launch import DRAIN_SIGNAL, WorkerLaunch
from pagelet.router.siblings import Siblings
from pagelet.router.state import RouterState
from pagelet.router.states import follow_file
from pagelet.router.tenants.counters import CounterTable

log = logging.getLogger("pagelet.router.serve")  # this module is __main__

_SWITCH_SECONDS = 0.0005
"""For which a thread that tokenises may keep the event loop waiting; Python's default is ten times
as long, on the way of every chunk."""

_ALONE_SECONDS = 0.5
"""After SIGTERM without the supervisor's signal it is this worker's own end. Whoever stops a whole
process tree signals every process of it, and then somebody must answer new connections in words."""
_REUSE_SECONDS = 5.0
"""For which connections without a request stay open while this worker leaves: clients may have
sent the next one already."""


async def serve(
    launch: WorkerLaunch, state: RouterState, counters: CounterTable, link: ParentLink
) -> bool:
    """Serves until drained. Returns whether all requests finished."""
    loop = asyncio.get_running_loop()
    siblings = Siblings(launch.siblings, launch.worker, launch.settings.workers)
    app = RouterApp(state, siblings)
    server = HTTPServer(app)
    drain_timeout = launch.config.proxy.drain_timeout
    ends: list[asyncio.Task[bool]] = []
    drains = asyncio.Event()

    def begin(end: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        if not ends:
            ends.append(loop.create_task(end()))
            ends[0].add_done_callback(lambda task: setattr(server, "should_exit", True))

    async def drain() -> bool:
        return await app.states.drain(drain_timeout)

    async def drains_within(seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await drains.wait()
        return drains.is_set()

    async def leave() -> bool:
        if await drains_within(_ALONE_SECONDS):
            return await drain()
        await server.listening.wait()
        log.info("told alone to end: the other workers take new connections")
        server.stop_accepting()
        app.leaving = True
        await drains_within(_REUSE_SECONDS)
        server.close_idle()
        return await app.states.finish(drain_timeout)

    def begin_drain() -> None:
        drains.set()
        begin(drain)

    async def report_and_follow() -> None:
        await server.listening.wait()
        link.report_serving()
        if launch.settings.config_file is not None:
            await follow_file(app.states, Path(launch.settings.config_file), counters)

    async def beat() -> None:
        await server.listening.wait()
        await link.keep_beating()

    def cut_off() -> None:
        begin_drain()
        server.cut_off()

    loop.add_signal_handler(DRAIN_SIGNAL, begin_drain)
    loop.add_signal_handler(CUT_OFF, cut_off)
    has_others = launch.settings.workers > 1
    loop.add_signal_handler(signal.SIGTERM, (lambda: begin(leave)) if has_others else begin_drain)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides
    following = loop.create_task(report_and_follow())
    beating = loop.create_task(beat())
    gc.collect()
    gc.freeze()  # modules live as long as the process: never scan them again
    await server.serve(sockets=[socket.socket(fileno=launch.listen_fd)])
    following.cancel()
    beating.cancel()
    return all(end.result() for end in ends)


def main() -> None:
    """Entry point."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int, required=True)
    launch, link = ParentLink.accept(parser.parse_args().config_fd, WorkerLaunch)
    settings = launch.settings
    name = f"router {launch.worker}" if settings.workers > 1 else "router"
    configure_logging(settings.log_level, settings.log_format, name)
    with contextlib.closing(
        CounterTable(launch.counters_fd, settings.workers, launch.worker)
    ) as counters:
        try:
            state = RouterState(launch.config, counters)
        except (ValueError, OSError) as error:
            link.fail(str(error))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            finished = runner.run(serve(launch, state, counters, link))
    sys.exit(0 if finished else 1)


if __name__ == "__main__":
    main()
