"""A router of a service with times as targets tells how many replicas keep them."""

from pathlib import Path

import httpx

from pagelet.protocol.router_metrics import DEMAND
from support.fleet import MODEL, metrics, replica, router, running
from support.processes import wait_for


def test_a_router_tells_what_its_objectives_ask_for(tmp_path: Path) -> None:
    """No token comes sooner than a step of 20 ms, so that one answer is all that a replica can give
    where 1 ms is asked for."""
    with running(replica(tmp_path / "replica.log", step_seconds=0.02)) as backend:
        scaling = {"tpot_seconds": 0.001, "ttft_seconds": 1}
        model = {"name": MODEL, "pools": [{"replicas": [backend.url]}], "scaling": scaling}
        with (
            running(router(tmp_path / "router.log", {"models": [model]})) as gate,
            httpx.Client(timeout=60) as client,
        ):
            url = f"{gate.url}/v1/completions"

            def demand(target: str) -> float:
                labels = f'service="{MODEL}",model="{MODEL}",pool="default",target="{target}"'
                return metrics(gate)[f"{DEMAND}{{{labels}}}"]

            assert (demand("ttft"), demand("tpot")) == (0, 0)
            body = {"model": MODEL, "prompt": "Once " * 500, "max_tokens": 20, "stream": True}
            for _ in range(5):
                client.post(url, json=body).raise_for_status()
            wait_for(lambda: 0 < demand("ttft") < 1)
            assert demand("backlog") == 0, "one time takes the place of the other"
            with client.stream("POST", url, json=body | {"max_tokens": 1000}):
                wait_for(lambda: demand("tpot") == 1)
            wait_for(lambda: demand("tpot") == 0)
