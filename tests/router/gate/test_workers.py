"""Several processes that are one router."""

import json
import time

import httpx
import pytest

from pagelet.protocol.api_keys import key_digest, new_key
from pagelet.router.tenants.key_file import digest_entry
from support.fleet import MODEL, metrics, replica, router, running

WORKERS = 2
LIMIT = 30
KEY = new_key()
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("router")
    keys = folder / "keys.json"
    tenant = {"name": "acme", "keys": [{"hash": digest_entry(key_digest(KEY))}]}
    keys.write_text(json.dumps({"tenants": [tenant | {"limits": {"requests_per_minute": LIMIT}}]}))
    with running(replica(folder / "replica.log")) as backend:
        config = {
            "models": [{"name": MODEL, "pools": [{"replicas": [backend.url]}]}],
            "api_keys_file": str(keys),
        }
        with running(router(folder / "log", config, "--workers", str(WORKERS))) as server:
            yield server


def test_limits_metrics_and_explanations_are_those_of_the_whole_router(gate):
    """Each request comes on a connection of its own, so the kernel spreads them over workers."""
    body = {"model": MODEL, "prompt": "Count.", "max_tokens": 1}
    answers, began = [], time.monotonic()
    for number in range(LIMIT + 10):
        headers = HEADERS | {"X-Request-Id": f"r-{number}"}
        url = f"{gate.url}/v1/completions"
        answers.append(httpx.post(url, json=body, headers=headers, timeout=60))
    statuses = [answer.status_code for answer in answers]
    assert statuses[:LIMIT] == [200] * LIMIT
    came_back = (time.monotonic() - began) * LIMIT / 60
    assert statuses.count(200) <= LIMIT + came_back
    assert statuses.count(429) == len(statuses) - statuses.count(200)
    remaining = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers]
    assert remaining[0] == LIMIT - 1
    assert remaining[LIMIT - 1] <= came_back

    for number in (0, 1, 2, 3, LIMIT - 1):
        told = httpx.get(f"{gate.url}/v1/explain/r-{number}", headers=HEADERS, timeout=60).json()
        assert (told["request_id"], told["status"]) == (f"r-{number}", 200)
    assert httpx.get(f"{gate.url}/v1/explain/none", headers=HEADERS, timeout=60).status_code == 404

    found = metrics(gate)
    labels = 'model="sim",tenant="acme"'
    passed = statuses.count(200)
    rows = httpx.get(f"{gate.url}/v1/usage", headers=HEADERS, timeout=60).json()["data"]
    assert {row["tenant"] for row in rows} == {"acme"}
    assert sum(row["requests"] for row in rows) == len(statuses)
    (used,) = (row for row in rows if row["model"] == MODEL)
    assert used["generated_tokens"] == passed
    assert used["prompt_tokens"] == found[f"pagelet_router_prompt_tokens_total{{{labels}}}"] > 0
    assert used["replica_seconds"] > 0
    assert found[f'pagelet_router_requests_total{{{labels},code="200"}}'] == passed
    assert found['pagelet_router_replicas{model="sim",pool="default",state="ready"}'] == 1
    assert found["pagelet_router_tenants"] == 1
    assert f"[router {WORKERS - 1}]" in gate.log
