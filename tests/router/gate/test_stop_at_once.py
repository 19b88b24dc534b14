"""The second signal stops at once, and every client is told, in whichever process its stream is."""

import concurrent.futures
import json
import signal
import threading
import time

import httpx
import pytest

from support.fleet import MODEL, Command, replica, router, running
from support.processes import wait_for

STREAMS = 6


def last_event(server: Command, began: threading.Semaphore) -> str:
    body = {"model": MODEL, "prompt": "Count.", "max_tokens": 1900, "stream": True}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=body | {"ignore_eos": True}, timeout=60
    ) as answer:
        last = ""
        for line in answer.iter_lines():
            if line.startswith("data: "):
                if not last:
                    began.release()
                last = line.removeprefix("data: ")
    return last


def stop_in_mid_stream(server: Command) -> list[str]:
    """The error with which each stream ended."""
    began = threading.Semaphore(0)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as threads:
        streams = [threads.submit(last_event, server, began) for _ in range(STREAMS)]
        for _ in range(STREAMS):
            assert began.acquire(timeout=60)
        server.signal(signal.SIGTERM)
        wait_for(lambda: "draining" in server.log)
        time.sleep(0.6)  # two at once are one wish
        assert server.stop() == 128 + signal.SIGTERM
        return [json.loads(stream.result())["error"]["message"] for stream in streams]


@pytest.mark.parametrize("workers", [1, 3])
def test_streams_through_a_router_end_with_an_error(tmp_path, backend, workers) -> None:
    config = {"models": [{"name": MODEL, "pools": [{"replicas": [backend.url]}]}]}
    with running(router(tmp_path / "log", config, "--workers", str(workers))) as server:
        wait_for(lambda: "routing at" in server.log)
        told = stop_in_mid_stream(server)
    assert told == ["The router shut down before the answer was finished."] * STREAMS


def test_streams_of_a_replica_end_with_an_error(tmp_path) -> None:
    with running(replica(tmp_path / "log", step_seconds=0.05)) as server:
        told = stop_in_mid_stream(server)
    assert told == ["the server shut down before the answer was finished"] * STREAMS


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    log = tmp_path_factory.mktemp("replica") / "log"
    with running(replica(log, step_seconds=0.05)) as server:
        yield server
