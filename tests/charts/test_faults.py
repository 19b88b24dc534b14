"""Real faults make real alerts fire: of a router, a replica, and a Prometheus that watches them.

The rules are the chart's, but for their patience: a test cannot wait for five minutes.
"""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from pagelet.protocol.api_keys import key_digest, new_key
from pagelet.router.tenants.key_file import digest_entry
from support.fake_gpu import pretend_foreign_memory
from support.fleet import MODEL, Command, replica, router, running
from support.processes import wait_for
from support.prometheus import Prometheus, prometheus

RULES = Path(__file__).parents[2] / "charts/pagelet/files/alerts.yaml"
NOBODY = "http://127.0.0.1:9"
KEY = new_key()
HEADERS = {"Authorization": f"Bearer {KEY}"}


def impatient(folder: Path) -> Path:
    """The alerts with windows of ten seconds, firing at once, and a shorter step as a hang."""
    text = re.sub(r"\[\d+m\]", "[10s]", RULES.read_text())
    text = re.sub(r"for: \w+", "for: 0s", text)
    assert text.count(") > 30") == 1
    path = folder / "alerts.yaml"
    path.write_text(text.replace(") > 30", ") > 2"))
    return path


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    tenant = {"name": "acme", "keys": [{"hash": digest_entry(key_digest(KEY))}]}
    file.write_text(json.dumps({"tenants": [tenant]}))
    return file


@pytest.fixture
def gate(tmp_path: Path, keys: Path) -> Iterator[tuple[Command, Command]]:
    """A replica; and a router of it, of one that is not there, and of a model without any."""
    with running(replica(tmp_path / "replica.log", step_seconds=0.02)) as backend:
        config = {
            "models": [
                {"name": MODEL, "pools": [{"replicas": [backend.url, NOBODY]}]},
                {"name": "away", "pools": [{"replicas": [NOBODY]}]},
            ],
            "api_keys_file": str(keys),
            "proxy": {"queue_timeout": 3},
        }
        with running(router(tmp_path / "router.log", config)) as server:
            yield backend, server


@pytest.fixture
def watching(tmp_path: Path, gate: tuple[Command, Command]) -> Iterator[Prometheus]:
    jobs = {name: [f"127.0.0.1:{each.port}"] for name, each in zip("ar", gate, strict=True)}
    with prometheus(tmp_path, jobs, [impatient(tmp_path)]) as server:
        yield server


def core_of(backend: Command) -> int:
    """The process of the replica's engine core."""
    (core,) = backend.processes("pagelet.engine.core.process")
    return core


def test_faults_fire_their_alerts(
    gate: tuple[Command, Command], keys: Path, watching: Prometheus
) -> None:
    backend, server = gate
    stop = threading.Event()

    def ask(model: str) -> None:
        """Again and again; what comes of it is what the alerts are about."""
        with httpx.Client(timeout=60, headers=HEADERS) as client:
            while not stop.is_set():
                # Long enough that the engine has work whenever it is stopped.
                body = {"model": model, "prompt": "Hello", "max_tokens": 50}
                client.post(f"{server.url}/v1/completions", json=body)
                stop.wait(0.05)

    with ThreadPoolExecutor(5) as threads:
        models = (MODEL, MODEL, MODEL, "away", "away")
        asking = [threads.submit(ask, model) for model in models]
        try:
            wait_for(lambda: watching.firing() >= {"PageletReplicaLeftOut", "PageletNoReplica"})
            wait_for(lambda: watching.firing() >= {"PageletRequestsFail"})
            quiet = {"PageletKeysUnreadable", "PageletStepStuck", "PageletOrphanGpuMemory"}
            wait_for(lambda: not watching.firing() & quiet)  # a busy machine is slow for a moment
            pretend_foreign_memory(backend, 2 << 30)
            wait_for(lambda: watching.firing() >= {"PageletOrphanGpuMemory"})
            keys.write_text("nothing that anyone could read")
            wait_for(lambda: watching.firing() >= {"PageletKeysUnreadable"})
            os.kill(core_of(backend), signal.SIGSTOP)
            wait_for(lambda: watching.firing() >= {"PageletStepStuck"})
        finally:
            stop.set()
            os.kill(core_of(backend), signal.SIGCONT)
    for each in asking:
        each.result()
