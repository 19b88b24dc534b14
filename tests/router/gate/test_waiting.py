"""Requests that find no replica, or none with room, and what a scaler sees of them."""

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from pagelet.protocol.api_keys import key_digest, new_key
from pagelet.router.tenants.key_file import digest_entry
from support.fleet import MODEL, client, metrics, replica, router, running
from support.processes import wait_for

POOL = '{model="sim",pool="default"}'


def ask(server, key="none", **fields):
    with client(server, key) as asking:
        return complete(asking, **fields)


def complete(asking, **fields):
    return asking.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Count to three."}],
        **({"max_tokens": 1} | fields),
    )


LIMIT = 5000
LONG = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Go on."}],
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 4000,
}


def stream(server):
    """An answer that takes long, once it has begun."""
    return httpx.stream("POST", f"{server.url}/v1/chat/completions", json=LONG, timeout=60)


def gauge(server, name):
    return metrics(server)[f"pagelet_router_{name}{POOL}"]


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    with running(replica(tmp_path_factory.mktemp("replica") / "log")) as server:
        yield server


def test_requests_are_held_for_a_service_that_starts_from_zero(tmp_path, backend):
    file = tmp_path / "replicas.json"
    file.write_text("[]")
    pools = [{"replicas_file": str(file)}]
    config = {
        "models": [
            {"name": MODEL, "pools": pools, "scaling": {"concurrency": 4}, "starts_from_zero": True}
        ],
        "proxy": {"queue_size": 2, "queue_timeout": 100},
    }
    with (
        running(router(tmp_path / "log", config), "/health") as gate,
        ThreadPoolExecutor() as threads,
    ):
        assert httpx.get(f"{gate.url}/ready", timeout=60).status_code == 200
        for name in ("waiting_requests", "held_requests", "backlog_seconds", "capacity_answers"):
            assert gauge(gate, name) == 0
        assert metrics(gate)['pagelet_router_retries_total{model="sim"}'] == 0
        with client(gate) as asking:
            assert [model.id for model in asking.models.list()] == [MODEL]
        held = [threads.submit(ask, gate) for _ in range(2)]
        wait_for(lambda: gauge(gate, "held_requests") == 2)
        assert gauge(gate, "waiting_requests") == 2
        assert gauge(gate, "waiting_prompt_tokens") > 0
        assert gauge(gate, "backlog_seconds") > 0
        wanted = '{service="sim",model="sim",pool="default",target="concurrency"}'
        assert metrics(gate)[f"pagelet_router_demand_replicas{wanted}"] == 2 / 4
        with pytest.raises(openai.RateLimitError) as full:
            ask(gate)
        assert full.value.code == "queue_full"
        assert int(full.value.response.headers["retry-after"]) >= 1
        file.write_text(json.dumps([{"id": "one", "url": backend.url}]))
        assert [request.result().status_code for request in held] == [200, 200]
        assert gauge(gate, "held_requests") == 0
        assert gauge(gate, "capacity_answers") > 0
        assert metrics(gate)["pagelet_router_queue_wait_seconds_count" + '{model="sim"}'] == 2


def test_a_request_that_waited_long_enough_gets_503(tmp_path):
    config = {
        "models": [{"name": MODEL, "pools": [{"replicas": ["http://127.0.0.1:9"]}]}],
        "proxy": {"queue_timeout": 0.2},
    }
    with running(router(tmp_path / "log", config), "/health") as gate:
        assert httpx.get(f"{gate.url}/ready", timeout=60).status_code == 503
        with pytest.raises(openai.InternalServerError) as late:
            ask(gate)
        assert late.value.status_code == 503
        assert late.value.code == "no_replica"
        assert int(late.value.response.headers["retry-after"]) >= 1
        wait_for(lambda: gauge(gate, "waiting_requests") == 0)


def test_a_client_that_goes_away_leaves_the_queue(tmp_path, backend):
    config = {
        "models": [{"name": MODEL, "pools": [{"replicas": [backend.url]}]}],
        "proxy": {"max_in_flight": 1},
    }
    with running(router(tmp_path / "log", config)) as gate, ThreadPoolExecutor() as threads:
        with stream(gate) as answer:
            assert answer.status_code == 200
            request = httpx.Request("POST", answer.url, json=LONG)
            with socket.create_connection((answer.url.host, answer.url.port)) as leaving:
                lines = (b"%b: %b" % header for header in request.headers.raw)
                head = b"\r\n".join((b"POST %b HTTP/1.1" % answer.url.raw_path, *lines, b"", b""))
                leaving.sendall(head + request.content)
                wait_for(lambda: gauge(gate, "waiting_requests") == 1)
            wait_for(lambda: gauge(gate, "waiting_requests") == 0)
            waiting = threads.submit(ask, gate)
            wait_for(lambda: gauge(gate, "waiting_requests") == 1)
            assert gauge(gate, "inflight_answers") == 1
        assert waiting.result().status_code == 200  # the stream's client is gone, too


def test_a_client_that_goes_away_pays_for_what_it_got(tmp_path, backend):
    config = {
        "models": [{"name": MODEL, "pools": [{"replicas": [backend.url]}]}],
        "default_limits": {"tokens_per_minute": LIMIT},
    }

    def used():
        return LIMIT - int(ask(gate).headers["x-ratelimit-remaining-tokens"])

    with running(router(tmp_path / "log", config)) as gate:
        with stream(gate) as answer:
            events = answer.iter_lines()
            for _ in range(40):
                next(events)
            assert used() > LONG["max_tokens"] / 2
        wait_for(lambda: gauge(gate, "inflight_answers") == 0)
        assert used() < LONG["max_tokens"] / 2
        generated = 'pagelet_router_generated_tokens_total{model="sim",tenant="anonymous"}'
        assert metrics(gate)[generated] > 15


def test_a_flood_of_one_tenant_delays_another_by_little(tmp_path, backend):
    keys, file = {name: new_key() for name in ("flood", "other")}, tmp_path / "keys.json"
    entries = {name: [{"hash": digest_entry(key_digest(key))}] for name, key in keys.items()}
    tenants = [{"name": name, "keys": entry} for name, entry in entries.items()]
    file.write_text(json.dumps({"tenants": tenants}))
    config = {
        "models": [{"name": MODEL, "pools": [{"replicas": [backend.url]}]}],
        "proxy": {"max_in_flight": 1},
        "api_keys_file": str(file),
    }

    def told():
        """Of the flood: requests that wait, and that were answered."""
        now = metrics(gate)
        done = 'pagelet_router_requests_total{model="sim",tenant="flood",code="200"}'
        return now[f"pagelet_router_waiting_requests{POOL}"], now.get(done, 0)

    with (
        running(router(tmp_path / "log", config)) as gate,
        client(gate, keys["other"]) as other,
        ThreadPoolExecutor(20) as threads,
    ):
        complete(other)  # its client has all that it needs
        length = {"max_tokens": 60, "extra_body": {"ignore_eos": True}}
        flood = [threads.submit(ask, gate, keys["flood"], **length) for _ in range(14)]
        wait_for(lambda: sum(told()) == 13)
        _, before = told()
        complete(other, **length)
        done = sum(request.done() for request in flood)
        assert done - before <= 4, "it had to wait for all that came before it"
        assert all(request.result().status_code == 200 for request in flood)


def test_no_replica_is_given_more_than_its_bound_and_a_drain_takes_no_places(tmp_path, backend):
    """Both streams have the same prompt, whose prefix one replica holds."""
    with running(replica(tmp_path / "replica")) as other, ThreadPoolExecutor() as threads:
        by_url = {backend.url: backend, other.url: other}
        config = {
            "models": [{"name": MODEL, "pools": [{"replicas": list(by_url)}]}],
            "proxy": {"max_in_flight": 1},
        }
        with running(router(tmp_path / "log", config)) as gate:
            wait_for(lambda: gauge(gate, "capacity_answers") == 2)
            with stream(gate) as one:
                with stream(gate) as two:
                    served = [answer.headers["x-pagelet-replica"] for answer in (one, two)]
                    assert sorted(served) == sorted(by_url)
                    waiting = threads.submit(ask, gate)
                    wait_for(lambda: gauge(gate, "waiting_requests") == 1)
                assert waiting.result().headers["x-pagelet-replica"] == served[1]
                by_url[served[0]].signal(signal.SIGTERM)
                ready = 'pagelet_router_replicas{model="sim",pool="default",state="ready"}'
                wait_for(lambda: metrics(gate)[ready] == 1)
                assert ask(gate).headers["x-pagelet-replica"] == served[1]
