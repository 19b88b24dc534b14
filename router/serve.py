"""A worker process: `python -m pagelet.router.serve --config-fd N`, started by the supervisor.

SIGTERM makes it refuse new requests, wait for those that run, and exit with code 0; with code 1 if
some of them had to be cut off.
"""

import argparse
import asyncio
import contextlib
import gc
import signal
import socket
import sys
from pathlib import Path

import uvloop

from pagelet.process.child import ParentLink
from pagelet.process.http_server import HTTPServer
from pagelet.process.logs import configure_logging
from pagelet.router.http.app import RouterApp
from pagelet.router.launch import WorkerLaunch
from pagelet.router.siblings import Siblings
from pagelet.router.state import RouterState
from pagelet.router.states import follow_file
from pagelet.router.tenants.counters import CounterTable

_SWITCH_SECONDS = 0.0005
"""For which a thread that tokenises may keep the event loop waiting; Python's default is ten times
as long, on the way of every chunk."""


async def serve(
    launch: WorkerLaunch, state: RouterState, counters: CounterTable, link: ParentLink
) -> bool:
    """Serves until drained. Returns whether all requests finished."""
    loop = asyncio.get_running_loop()
    siblings = Siblings(launch.siblings, launch.worker, launch.settings.workers)
    app = RouterApp(state, siblings)
    server = HTTPServer(app)
    drains: list[asyncio.Task[bool]] = []

    def begin_drain() -> None:
        if not drains:
            drains.append(loop.create_task(app.states.drain(launch.config.proxy.drain_timeout)))
            drains[0].add_done_callback(lambda task: setattr(server, "should_exit", True))

    async def report_and_follow() -> None:
        await server.listening.wait()
        link.report_serving()
        if launch.settings.config_file is not None:
            await follow_file(app.states, Path(launch.settings.config_file), counters)

    loop.add_signal_handler(signal.SIGTERM, begin_drain)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides
    following = loop.create_task(report_and_follow())
    gc.collect()
    gc.freeze()  # modules live as long as the process: never scan them again
    await server.serve(sockets=[socket.socket(fileno=launch.listen_fd)])
    following.cancel()
    return all(drain.result() for drain in drains)


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
