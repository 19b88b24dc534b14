"""Replicas are replaced again and again under load, as a rollout does it: a new one starts and is
written into the file, the old one is taken out and told to end at once. Nobody notices."""

import concurrent.futures
import json
import threading

import httpx

from support.fleet import MODEL, replica, router, running, write_replicas
from support.processes import wait_for

UPDATES = 5
CLIENTS = 6
TOKENS = 60


def request(number):
    """Path, body, and what ends its stream, of each kind of request in turn."""
    ask = f"Question {number}"
    body = {"model": MODEL, "stream": True, "seed": number}
    messages = [{"role": "user", "content": ask}]
    match number % 4:
        case 0:
            body |= {"prompt": ask, "max_tokens": TOKENS, "ignore_eos": True}
            return "/v1/completions", body | {"stream_options": {"include_usage": True}}, "[DONE]"
        case 1:
            body |= {"messages": messages, "max_tokens": TOKENS, "ignore_eos": True}
            body |= {"stream_options": {"include_usage": True}}
            return "/v1/chat/completions", body, "[DONE]"
        case 2:
            return "/v1/responses", body | {"input": ask, "max_output_tokens": TOKENS}, "response."
        case _:
            return "/v1/messages", body | {"messages": messages, "max_tokens": TOKENS}, "message_"


def fault_of(answer, number):
    """None for a whole answer."""
    _, body, end = request(number)
    told = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    whole = answer.status_code == 200 and told and end in told[-1] and '"error":{' not in told[-1]
    if whole and end == "[DONE]":
        whole = json.loads(told[-2])["usage"]["completion_tokens"] == body["max_tokens"]
    return None if whole else (number, answer.status_code, answer.text[-500:])


def test_rolling_updates_fail_no_request_and_lose_no_stream(tmp_path) -> None:
    file = tmp_path / "replicas.json"
    stop, faults, answered, started = threading.Event(), [], [0] * CLIENTS, []

    def start(generation):
        log = tmp_path / f"{generation}.log"
        started.append(replica(log, "--drain-timeout", "0.2").start())
        return started[-1].wait_ready()

    def ask(client):
        with httpx.Client(base_url=server.url, timeout=60) as http:
            while not stop.is_set():
                number = client + CLIENTS * answered[client]
                path, body, _ = request(number)
                faults.append(fault_of(http.post(path, json=body), number))
                answered[client] += 1

    def wait_for_answers(count):
        before = sum(answered)
        wait_for(lambda: sum(answered) >= before + count)

    config = {
        "models": [{"name": MODEL, "pools": [{"replicas_file": str(file)}]}],
        "proxy": {"health_interval": 0.25},
    }
    write_replicas(file, {})
    try:
        old = start(0)
        write_replicas(file, {"0": old})
        with (
            running(router(tmp_path / "router.log", config)) as server,
            concurrent.futures.ThreadPoolExecutor(CLIENTS) as threads,
        ):
            asking = [threads.submit(ask, client) for client in range(CLIENTS)]
            try:
                for generation in range(1, UPDATES + 1):
                    wait_for_answers(CLIENTS)
                    new = start(generation)
                    write_replicas(file, {str(generation - 1): old, str(generation): new})
                    wait_for_answers(CLIENTS)
                    write_replicas(file, {str(generation): new})
                    old.stop()
                    old = new
                wait_for_answers(CLIENTS)
            finally:
                stop.set()
            for job in asking:
                job.result()
            assert [fault for fault in faults if fault is not None] == []
            text = httpx.get(f"{server.url}/metrics", timeout=60).text
            moved = [line for line in text.splitlines() if "_resumes_total{" in line]
            assert sum(float(line.split()[-1]) for line in moved) > 0, "no stream had to move"
    finally:
        for each in started:
            each.close()
