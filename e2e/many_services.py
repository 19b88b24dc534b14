"""What many InferenceServices cost the operator:

    PYTHONPATH=tests .venv/bin/python e2e/many_services.py --services 500

A control plane without nodes is brought up (or E2E_KUBECONFIG's taken), and this program says of
pods that they run, as kubelets would. Prints memory, processor time and API requests, and how soon
a restarted operator is at work.
"""

import argparse
import asyncio
import contextlib
import os
import re
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from cluster.local import local_cluster
from pagelet.operator.kube.client import login
from pagelet.operator.kube.resources import PODS, SERVICES, Object
from pagelet.protocol.inference_service.crd import custom_resource_definition
from pagelet.protocol.inference_service.kind import API_VERSION, KIND
from support.cluster import Api, condition

AT_ONCE = 16
NAMESPACES = 10
IDLE_SECONDS = 60


class Operator:
    """A running operator, seen from outside."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        command = [sys.executable, "-m", "pagelet.cli", "operator"]
        command += ["--agent-image", "agent:1", "--router-image", "router:1"]
        command += ["--own-namespace", "default", "--host", "127.0.0.1", "--port", str(self._port)]
        environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        self.began = time.monotonic()
        self._log = log
        with log.open("ab") as output:
            self._process = psutil.Popen(command, env=environment, stdout=output, stderr=output)

    def stop(self) -> None:
        """Ends it in good order."""
        if self._process.is_running():
            self._process.terminate()
            self._process.wait(60)

    def check(self) -> None:
        """Raises if it has ended."""
        if not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE:
            raise SystemExit(f"the operator has ended: {self._log.read_text().splitlines()[-1]}")

    def metric(self, name: str) -> float:
        """0 while it does not answer."""
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self._port}/metrics"
            with urllib.request.urlopen(url, timeout=10) as response:
                found = re.search(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)
                return float(found[1]) if found else 0.0
        return 0.0

    def reconciles(self) -> float:
        """So far."""
        return self.metric("pagelet_operator_reconcile_seconds_count")

    def figures(self) -> dict[str, float]:
        """So far."""
        times = self._process.cpu_times()
        return {
            "memory, MiB": self._process.memory_info().rss / 2**20,
            "processor, s": times.user + times.system,
            "API requests": self.metric("pagelet_operator_api_requests_total"),
            "objects applied": self.metric("pagelet_operator_applied_objects_total"),
            "reconciles": self.reconciles(),
        }


async def run_pods(api: Api) -> None:
    """Says of every pod that it runs, soon after it is there."""
    limit = asyncio.Semaphore(AT_ONCE)
    kinds = ("PodScheduled", "Ready", "ContainersReady")
    conditions = [{"type": kind, "status": "True", "reason": None} for kind in kinds]
    body = {"status": {"phase": "Running", "conditions": conditions, "podIP": "127.0.0.9"}}

    async def run(pod: Object) -> None:
        metadata = pod["metadata"]
        path = PODS.path(metadata["namespace"], metadata["name"], "status")
        async with limit:
            await api.request("PATCH", path, {}, body, "application/strategic-merge-patch+json")

    while True:
        pods, _ = await api.list_all(PODS, None, fieldSelector="status.phase=Pending")
        await asyncio.gather(*(run(pod) for pod in pods))
        await asyncio.sleep(0.5)


async def until(attempt: Callable[[], Awaitable[bool]], seconds: float) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    while not await attempt():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"not within {seconds:.0f} s")
        await asyncio.sleep(0.25)
    return time.monotonic() - began


async def make(api: Api, count: int) -> None:
    """The services, in some namespaces."""
    limit = asyncio.Semaphore(AT_ONCE)
    for index in range(NAMESPACES):
        name = {"metadata": {"name": f"many-{index}"}}
        await api.request("POST", "/api/v1/namespaces", body=name)

    async def create(index: int) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": f"service-{index}"},
            "spec": {"model": {"uri": "package://model"}, "router": {"replicas": 1}},
        }
        async with limit:
            await api.create(SERVICES, f"many-{index % NAMESPACES}", body)

    await asyncio.gather(*(create(index) for index in range(count)))


async def measure(kubeconfig: Path, count: int, log: Path) -> None:
    """Prints what it finds."""
    os.environ["KUBECONFIG"] = str(kubeconfig)
    api = Api(login)
    await api.install(custom_resource_definition())
    operator = Operator(kubeconfig, log)
    running = asyncio.create_task(run_pods(api))

    async def all_serve() -> bool:
        operator.check()
        services, _ = await api.list_all(SERVICES, None)
        done = sum(condition(found, "Ready").get("reason") == "Serving" for found in services)
        return bool(done == count)

    async def reconciled(times: int) -> bool:
        return bool(await asyncio.to_thread(operator.reconciles) >= times)

    try:
        await make(api, count)
        taken = await until(all_serve, 1800)
        show(f"{count} services made and serving", {"wall, s": taken, **operator.figures()})

        await asyncio.sleep(30)
        before = operator.figures()
        await asyncio.sleep(IDLE_SECONDS)
        after = operator.figures()
        spent = {name: after[name] - before[name] for name in after if name != "memory, MiB"}
        show(f"{IDLE_SECONDS} s in which nothing happens", {**after, **spent})

        operator.stop()
        for index in range(NAMESPACES):  # what no watch will tell of
            await api.patch_service(f"many-{index}", f"service-{index}", {"replicas": 2})
        operator = Operator(kubeconfig, log)
        await until(lambda: reconciled(1), 300)
        first = time.monotonic() - operator.began
        await until(lambda: reconciled(count), 300)
        every = time.monotonic() - operator.began
        seen = {"first reconcile, s": first, "all reconciled, s": every}
        show("after a restart", {**seen, **operator.figures()})
    finally:
        running.cancel()
        operator.stop()
        await api.close()


def show(title: str, figures: dict[str, Any]) -> None:
    """Prints a paragraph."""
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:20} {value:10.1f}", flush=True)


@contextlib.contextmanager
def cluster() -> Iterator[Path]:
    """Its administrator's kubeconfig."""
    if given := os.environ.get("E2E_KUBECONFIG"):
        yield Path(given)
        return
    with local_cluster("many-services", nodes=0) as made:
        yield made.kubeconfig


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=500)
    count = parser.parse_args().services
    with cluster() as kubeconfig, tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "operator.log")
        asyncio.run(measure(kubeconfig, count, log))
        faults = [line for line in log.read_text().splitlines() if " INFO " not in line]
        print(f"\n{len(faults)} warnings of the operator", *faults[:10], sep="\n  ")


if __name__ == "__main__":
    main()
