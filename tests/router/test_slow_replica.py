"""One of three replicas answers fifty times slower than the others: it fails no request, and
before long few new ones go there."""

import collections
import concurrent.futures

import httpx
import pytest

from support.fleet import MODEL, in_order, replica, router

CLIENTS = 6
STEP = 0.01
WARM_UP = 40
COUNTED = 60


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    speeds = {"a": STEP, "b": STEP, "slow": 50 * STEP}
    replicas = {
        name: replica(folder / f"{name}.log", step_seconds=step) for name, step in speeds.items()
    }
    config = {"models": [{"pools": [{"replicas": [each.url for each in replicas.values()]}]}]}
    server = router(folder / "router.log", config)
    try:
        in_order([*replicas.values(), server])
        yield server, {each.url: name for name, each in replicas.items()}
    finally:
        for command in (*replicas.values(), server):
            command.close()


@pytest.mark.parametrize("stream", [False, True])
def test_most_requests_avoid_a_slow_replica(fleet, stream) -> None:
    server, names = fleet

    def ask(number):
        prompt = f"{stream} {number}: a prompt that nobody knows"
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "stream": stream}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert not stream or answer.text.endswith("data: [DONE]\n\n")
        return names[answer.headers["x-pagelet-replica"]]

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as threads:
        chosen = list(threads.map(ask, range(WARM_UP + COUNTED)))
    counts = collections.Counter(chosen[WARM_UP:])
    assert counts["slow"] < COUNTED / 6, counts
