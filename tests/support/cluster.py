"""An API server in tests."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import kopf

from pagelet.operator.kube.client import Client, NotFound
from pagelet.operator.kube.resources import DEPLOYMENTS, SERVICES, Object
from pagelet.operator.planning.objects import SERVICE_LABEL

PATIENCE = 120.0
"""Seconds until something that will not happen is given up."""
POD_ADDRESS = "127.0.0.9"
"""Where all pods are said to be."""


class Api(Client):
    """The operator's client, with the calls that only tests make, and more patience."""

    def __init__(self, login: Callable[[], kopf.ConnectionInfo]) -> None:
        super().__init__(login)
        self._session._timeout = aiohttp.ClientTimeout(total=PATIENCE / 2)

    @property
    def connection(self) -> kopf.ConnectionInfo:
        """Where and as whom it asks."""
        return self._connection

    async def request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        """Any call."""
        return await self._request(method, path, query, body, content_type)

    async def install(self, definition: Object) -> None:
        """A CRD, served."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        name = definition["metadata"]["name"]
        query = {"fieldManager": "test", "force": "true"}
        await self.request(
            "PATCH", f"{path}/{name}", query, definition, "application/apply-patch+yaml"
        )
        # Established is said a moment before all of the API server serves it.
        await eventually(lambda: self.list_all(SERVICES, None))

    async def service(self, namespace: str, name: str) -> Object:
        """An InferenceService."""
        return await self.get(SERVICES, namespace, name)

    async def patch_service(self, namespace: str, name: str, spec: Object) -> Object:
        """Changes its spec by a merge patch."""
        return await self.merge(SERVICES, namespace, name, {"spec": spec})

    async def objects(self, namespace: str, service: str) -> dict[tuple[str, str], Object]:
        """All that was made for a service, by kind and name."""
        from pagelet.operator.kube.resources import CHILDREN

        found = {}
        for resource in CHILDREN:
            with contextlib.suppress(NotFound):
                selector = f"{SERVICE_LABEL}={service}"
                made, _ = await self.list_all(resource, namespace, labelSelector=selector)
                found.update({(resource.kind, one["metadata"]["name"]): one for one in made})
        return found

    async def run_pods(self, namespace: str) -> None:
        """Says of all pods that they run and are ready, as a kubelet would."""
        pods = await self.request("GET", f"/api/v1/namespaces/{namespace}/pods")
        for pod in pods["items"]:
            name = pod["metadata"]["name"]
            kinds = ("PodScheduled", "Ready", "ContainersReady")
            conditions = [{"type": kind, "status": "True", "reason": None} for kind in kinds]
            status = {"phase": "Running", "conditions": conditions, "podIP": POD_ADDRESS}
            with contextlib.suppress(NotFound):
                await self.request(
                    "PATCH",
                    f"/api/v1/namespaces/{namespace}/pods/{name}/status",
                    body={"status": status},
                    content_type="application/strategic-merge-patch+json",
                )

    async def end_pods(self, namespace: str) -> None:
        """Takes pods that are to go away, as a kubelet would."""
        pods = await self.request("GET", f"/api/v1/namespaces/{namespace}/pods")
        for pod in pods["items"]:
            if pod["metadata"].get("deletionTimestamp"):
                path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
                with contextlib.suppress(NotFound):
                    await self.request("DELETE", path, {"gracePeriodSeconds": "0"})

    async def deployment(self, namespace: str, name: str) -> Object:
        """A Deployment."""
        return await self.get(DEPLOYMENTS, namespace, name)


async def eventually(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """What an attempt gives once it neither raises nor gives something false."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            if result := await attempt():
                return result
            reason: object = "it stayed false"
        except Exception as error:
            reason = repr(error)
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE:.0f} s: {reason}")
        await asyncio.sleep(0.1)


def condition(service: Object, kind: str) -> Object:
    """One of a service's conditions; empty if it is not there."""
    conditions = service.get("status", {}).get("conditions", [])
    found: Object = next((c for c in conditions if c["type"] == kind), {})
    return found


class RunningOperator:
    """The operator's process, started anew when it has lost its lease, as Kubernetes does."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start = start
        self._process = start()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._keep)
        self._keeper.start()

    def end(self, patience: float) -> int:
        """Sends SIGTERM; the exit code, or -SIGKILL if it took longer than so many seconds."""
        with self._lock:
            self._ending.set()
            self._process.terminate()
        self._keeper.join(patience)
        self._process.kill()
        self._keeper.join()
        return self._process.returncode

    def _keep(self) -> None:
        while self._process.wait() == 1 and not self._ending.wait(1):
            with self._lock:
                if not self._ending.is_set():
                    self._process = self._start()


@contextlib.contextmanager
def running_operator(
    kubeconfig: Path, namespace: str, log: Path, *arguments: str, prologue: str = ""
) -> Iterator[RunningOperator]:
    """The operator, for one namespace, with a relist every few seconds. `prologue` is Python that
    its process runs first."""
    program = f"{prologue}\nfrom pagelet.cli.main import main\nmain()"
    command = [
        *(sys.executable, "-c", program, "operator", "--agent-image", "agent:1"),
        *("--router-image", "router:1", "--relist-seconds", "5", "--port", "0"),
        *("--namespace", namespace, "--own-namespace", namespace, *arguments),
    ]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    with log.open("ab") as output:
        operator = RunningOperator(
            lambda: subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        )
        try:
            yield operator
        finally:
            operator.end(20)
