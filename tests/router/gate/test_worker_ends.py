"""One of several workers is told to end, or dies: the others take what comes."""

import concurrent.futures
import contextlib
import json
import os
import signal
import threading

import httpx
import psutil
import pytest

from support.fleet import IMPATIENT, MODEL, replica, router, running
from support.processes import wait_for

WORKERS = 3
SERVE = "pagelet.router.serve"


@pytest.fixture(scope="module")
def replica_key(tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "replica"
    file.write_text("a-key")
    return file


@pytest.fixture(scope="module")
def gate(tmp_path_factory, replica_key):
    folder = tmp_path_factory.mktemp("router")
    with running(replica(folder / "replica.log")) as backend:
        config = {
            "models": [{"name": MODEL, "pools": [{"replicas": [backend.url]}]}],
            "replica_api_key_file": str(replica_key),
        }
        workers = ("--workers", str(WORKERS))
        with running(router(folder / "log", config, *workers, program=IMPATIENT)) as server:
            wait_for(lambda: "routing at" in server.log)
            yield server


def body(**fields):
    return {"model": MODEL, "prompt": "Count.", "max_tokens": 2} | fields


def ask_until(gate, stop, failed, answered):
    """Each request on a connection of its own, so the kernel spreads them over workers."""
    while not stop.is_set():
        try:
            answer = httpx.post(f"{gate.url}/v1/completions", json=body(), timeout=60)
            if answer.status_code != 200:
                failed.append(answer.text)
        except httpx.TransportError as error:
            failed.append(repr(error))
        answered.append(None)


def stream_one(gate, began):
    with httpx.stream(
        "POST", f"{gate.url}/v1/completions", json=body(max_tokens=200, stream=True), timeout=60
    ) as answer:
        lines = answer.iter_lines()
        texts = []
        for line in lines:
            began.release()
            if line.startswith("data: {"):
                texts += [choice["text"] for choice in json.loads(line[6:])["choices"]]
            elif line == "data: [DONE]":
                return "".join(texts)
    return None


def wait_until_replaced(gate, *ended):
    def replaced():
        now = gate.processes(SERVE)
        return len(now) == WORKERS and not {*ended} & {*now}

    wait_for(replaced)


def test_a_worker_that_is_told_to_end_loses_nothing_and_is_replaced(gate):
    before = set(gate.processes(SERVE))
    leaves = min(before)
    stop, failed, answered = threading.Event(), [], []
    began = threading.Semaphore(0)
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        streams = [threads.submit(stream_one, gate, began) for _ in range(12)]
        for _ in streams:
            assert began.acquire(timeout=60)
        asking = [threads.submit(ask_until, gate, stop, failed, answered) for _ in range(3)]
        os.kill(leaves, signal.SIGTERM)
        wait_until_replaced(gate, leaves)
        stop.set()
        for job in asking:
            job.result()
        assert all(job.result() for job in streams)
    assert failed == []
    assert answered
    assert before - set(gate.processes(SERVE)) == {leaves}
    assert "told alone to end" in gate.log


def num_connections(pid):
    return len(psutil.Process(pid).net_connections("tcp"))


def test_a_connection_that_is_kept_is_served_to_its_end(gate):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(timeout=60)) for _ in range(12)]
        for client in clients:
            assert client.post(f"{gate.url}/v1/completions", json=body()).status_code == 200
        # One may have got all of the connections, if the others did not run meanwhile.
        leave = sorted(gate.processes(SERVE), key=num_connections)[-2:]
        told = gate.log.count("told alone to end")
        for pid in leave:
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: gate.log.count("told alone to end") >= told + 2)
        answers = [client.post(f"{gate.url}/v1/completions", json=body()) for client in clients]
        assert {answer.status_code for answer in answers} == {200}
        assert "close" in {answer.headers.get("connection") for answer in answers}
    wait_until_replaced(gate, *leave)


def test_after_a_worker_was_killed_new_requests_go_to_the_others(gate):
    before = set(gate.processes(SERVE))
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: killed not in gate.processes(SERVE))
    answers = [httpx.post(f"{gate.url}/v1/completions", json=body(), timeout=60) for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    wait_until_replaced(gate, killed)
    assert before - set(gate.processes(SERVE)) == {killed}


def test_a_worker_that_is_stopped_is_replaced(gate):
    stopped = min(gate.processes(SERVE))
    os.kill(stopped, signal.SIGSTOP)
    wait_for(lambda: stopped not in gate.processes(SERVE))
    assert "is hung: no sign of life for" in gate.log
    wait_for(lambda: len(gate.processes(SERVE)) == WORKERS)
    answers = [httpx.post(f"{gate.url}/v1/completions", json=body(), timeout=60) for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}


def test_a_worker_that_finds_a_file_away_is_tried_again(gate, replica_key):
    away = replica_key.rename(replica_key.with_suffix(".away"))
    before = gate.log.count("exit code 78")
    killed = min(gate.processes(SERVE))
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: gate.log.count("exit code 78") > before)
    assert httpx.post(f"{gate.url}/v1/completions", json=body(), timeout=60).status_code == 200
    away.rename(replica_key)
    wait_until_replaced(gate, killed)
