"""The API process: `python -m pagelet.agent.serve --config-fd N`, started by the supervisor.

Serves HTTP on the inherited listening socket. It answers at once, `/ready` with 503 until an
engine core is there. SIGTERM makes it refuse new requests, wait for those that run, and exit with
code 0; with code 1 if some of them had to be cut off. `CUT_OFF` ends them with an error at once.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys

import uvloop

from pagelet.agent.http.app import create_app
from pagelet.agent.http.server import Server
from pagelet.agent.launch import ApiLaunch
from pagelet.agent.metrics import Metrics
from pagelet.agent.settings import ServeSettings
from pagelet.engine.async_llm import AsyncLLM
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.model_config import context_length
from pagelet.engine.source import resolve_model
from pagelet.engine.weights.load_config import load_model_config
from pagelet.process.child import ParentLink
from pagelet.process.http_server import HTTPServer
from pagelet.process.logs import configure_logging
from pagelet.process.signals import CUT_OFF
from pagelet.protocol.api_keys import BadKey
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.errors import ModelSourceError

_CUT_OFF_WORDS = "the server shut down before the answer was finished"
log = logging.getLogger("pagelet.agent.serve")


async def serve(launch: ApiLaunch, link: ParentLink) -> bool:
    """Serves until drained. Returns whether all requests finished."""
    options, settings = launch.options, launch.settings
    loop = asyncio.get_running_loop()
    metrics = make_metrics(options, settings)
    llm = await AsyncLLM.connect(
        options, launch.socket_paths, launch.heartbeat_paths, metrics, settings.step_timeout
    )
    try:
        app = create_app(llm, settings, metrics)
    except (OSError, UnicodeDecodeError, BadKey) as error:
        raise ConfigurationError(f"--api-key-file {settings.api_key_file}: {error}") from error
    server = HTTPServer(app)
    report = loop.create_task(_report_serving(server, llm, link))
    beating = loop.create_task(_keep_beating(report, link))
    drains: list[asyncio.Task[bool]] = []

    def begin_drain() -> None:
        if not drains:
            drains.append(loop.create_task(_drain(app.state.server, settings.drain_timeout)))
            drains[0].add_done_callback(lambda task: setattr(server, "should_exit", True))

    def cut_off() -> None:
        begin_drain()
        llm.break_off(_CUT_OFF_WORDS)

    loop.add_signal_handler(signal.SIGTERM, begin_drain)
    loop.add_signal_handler(CUT_OFF, cut_off)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides
    gc.collect()
    gc.freeze()  # modules and tokenizer live as long as the process: never scan them again
    await server.serve(sockets=[socket.socket(fileno=launch.listen_fd)])
    report.cancel()
    await llm.close()
    if (spans := app.state.server.spans) is not None:
        await asyncio.to_thread(spans.close)
    beating.cancel()
    return all(drain.result() for drain in drains)


def make_metrics(options: EngineOptions, settings: ServeSettings) -> Metrics:
    """Metrics for a model, which has to be looked at first: buckets go up to its context length."""
    files = resolve_model(options)
    return Metrics(
        model_name=(options.model.served_model_names or [files.name])[0],
        max_model_len=context_length(
            load_model_config(files, options.model), options.model.max_model_len
        ),
        block_size=options.cache.block_size,
        enable_prefix_caching=options.cache.enable_prefix_caching,
        num_engines=options.parallel.data_parallel_size,
        aliases=settings.metric_aliases,
        num_speculative_tokens=(
            0 if options.speculation is None else options.speculation.num_speculative_tokens
        ),
        max_loras=options.lora.max_loras if options.lora.enabled else 0,
    )


async def _report_serving(server: HTTPServer, llm: AsyncLLM, link: ParentLink) -> None:
    await server.listening.wait()
    await llm.wait_ready()
    link.report_serving(llm.served_model_names[0])


async def _keep_beating(serving: asyncio.Task[None], link: ParentLink) -> None:
    await serving  # imports and tokenizers before that may take any time
    await link.keep_beating()


async def _drain(server: Server, most_seconds: float) -> bool:
    """Whether all requests finished in time; those that did not are answered with an error."""
    ends = asyncio.get_running_loop().time() + most_seconds
    server.begin_drain()
    try:
        async with asyncio.timeout_at(ends):
            await server.wait_idle()
    except TimeoutError:
        log.warning(
            "%d requests did not finish within the %g s of --drain-timeout and are cut off",
            server.open_requests,
            most_seconds,
        )
        server.llm.break_off(_CUT_OFF_WORDS)
        return False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(ends):
            await server.wait_fetched()
    return True


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int, required=True)
    launch, link = ParentLink.accept(parser.parse_args().config_fd, ApiLaunch)
    settings = launch.settings
    configure_logging(settings.log_level, settings.log_format, "API server")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            finished = runner.run(serve(launch, link))
    except (ConfigurationError, ModelSourceError) as error:
        link.fail(str(error))
    sys.exit(0 if finished else 1)


if __name__ == "__main__":
    main()
