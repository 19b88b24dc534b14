"""Draws the chart's dashboards, docs/images/dashboard-*.png, from their JSON and its queries.

    make dashboards

For two minutes a router and two replicas answer streams, more and fewer of them, while a replica
is killed and comes back; and an operator looks after services on an API server of this machine,
where there are no nodes. A Prometheus scrapes them all each second. The replicas' model is
simulated, and their GPU is a fake.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import kopf
from pictures import Series, draw, save

from cluster.local import local_cluster
from pagelet.bench.server import free_port
from pagelet.operator.kube.resources import SERVICES
from pagelet.protocol.api_keys import key_digest
from pagelet.protocol.inference_service.crd import custom_resource_definition
from pagelet.router.tenants.key_file import digest_entry
from support.broken_services import service
from support.cluster import Api, running_operator
from support.fake_gpu import pretend_foreign_memory
from support.fleet import MODEL, Command, in_order, replica, router, running
from support.processes import wait_for
from support.prometheus import Prometheus, prometheus

ROOT = Path(__file__).parents[2]
SECONDS = 150
RATE_INTERVAL = "10s"
TENANTS = {"acme": 4, "globex": 2, "initech": 1}
"""And how much of the load is theirs."""
STREAMS = ((0.0, 3), (0.2, 10), (0.35, 28), (0.6, 12), (0.8, 5))
"""At once, from a share of the time on."""
KILLED, BACK = 0.45, 0.6


def draw_all(folder: Path) -> None:
    """The pictures."""
    with contextlib.ExitStack() as stack:
        watching, began, services = _bring_up(folder, stack)
        ended = time.time()
        for file in sorted((ROOT / "charts/pagelet/dashboards").glob("*.json")):

            def find(query: str) -> list[Series]:
                return _range(watching, query, began, ended)

            figure, empty = draw(file, find, (began, ended), RATE_INTERVAL)
            assert not empty, f"{file.name}: nothing was found for {empty}"
            save(figure, ROOT / f"docs/images/dashboard-{file.stem}.png")
        services.result()


def _bring_up(
    folder: Path, stack: contextlib.ExitStack
) -> tuple[Prometheus, float, "concurrent.futures.Future[None]"]:
    """A Prometheus that has watched it all, since when, and what is to be waited for."""
    keys = {name: f"sk-{name}" for name in TENANTS}
    key_file = folder / "keys.json"
    entries = [
        {"name": name, "keys": [{"hash": digest_entry(key_digest(key))}]}
        for name, key in keys.items()
    ]
    key_file.write_text(json.dumps({"tenants": entries}))
    slots = ("--max-num-seqs", "8", "--max-model-len", "4096", "--num-blocks", "260")
    backends = []
    for index in range(2):
        sockets = f"ipc://{folder}/events-{index}"
        events = ("--kv-events-endpoint", sockets, "--kv-events-replay-endpoint", f"{sockets}-r")
        log = folder / f"replica-{index}.log"
        backends.append(replica(log, *slots, *events, step_seconds=0.03))
    for backend in backends:
        stack.callback(backend.close)
    pools = [{"replicas": [backend.url for backend in backends]}]
    gate = router(
        folder / "router.log",
        {"models": [{"name": MODEL, "pools": pools}], "api_keys_file": str(key_file)},
    )
    cluster = stack.enter_context(local_cluster("dashboards", nodes=0))
    operator_port = free_port()
    jobs = {
        "replicas": [f"127.0.0.1:{backend.port}" for backend in backends],
        "router": [f"127.0.0.1:{gate.port}"],
        "operator": [f"127.0.0.1:{operator_port}"],
    }
    namespace = "models"
    asyncio.run(_prepare(cluster.kubeconfig, namespace))
    arguments = ("--port", str(operator_port))
    log = folder / "operator.log"
    stack.enter_context(running_operator(cluster.kubeconfig, namespace, log, *arguments))
    in_order(backends)
    for backend in backends:
        pretend_foreign_memory(backend, 0)
    stack.enter_context(running(gate))
    wait_for(lambda: _serves_metrics(operator_port))
    watching = stack.enter_context(prometheus(folder, jobs))
    pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(40))
    services = pool.submit(asyncio.run, _change_services(cluster.kubeconfig, namespace))
    began = time.time()
    stop = threading.Event()
    stack.callback(stop.set)
    for index in range(max(count for _, count in STREAMS)):
        pool.submit(_stream, gate.url, keys, index, began, stop)
    _kill_one(backends[1], began)
    time.sleep(max(0.0, began + SECONDS - time.time()))
    stop.set()
    return watching, began + 12, services  # a rate needs some samples


def _serves_metrics(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 200
    except httpx.TransportError:
        return False


def _kill_one(backend: Command, began: float) -> None:
    """It ends at once, and is started again; then somebody else uses its GPU, too."""
    time.sleep(max(0.0, began + KILLED * SECONDS - time.time()))
    backend.kill()
    time.sleep(max(0.0, began + BACK * SECONDS - time.time()))
    backend.start().wait_ready()
    pretend_foreign_memory(backend, 6 << 30)


def _stream(
    url: str, keys: dict[str, str], index: int, began: float, stop: threading.Event
) -> None:
    """Chats of several turns, one after the other, while so many are to run at once."""
    random_ = random.Random(index)
    names = [name for name, share in TENANTS.items() for _ in range(share)]
    tenant = names[index % len(names)]
    headers = {"Authorization": f"Bearer {keys[tenant]}"}
    with httpx.Client(timeout=60, headers=headers) as client:
        while not stop.is_set():
            share = (time.time() - began) / SECONDS
            wanted = [count for since, count in STREAMS if since <= share][-1]
            if index >= wanted:
                stop.wait(0.5)
                continue
            text = f"You are the assistant of {tenant}. " * 12 + f"Topic {random_.randrange(12)}. "
            for _ in range(random_.randrange(1, 4)):
                text += "What follows from that? " * random_.randrange(4, 40)
                body = {
                    "model": MODEL,
                    "prompt": text,
                    "max_tokens": random_.randrange(8, 60),
                    "stream": True,
                }
                with contextlib.suppress(httpx.HTTPError):
                    client.post(f"{url}/v1/completions", json=body)
                text += " So it is. "


@contextlib.asynccontextmanager
async def _api(kubeconfig: Path) -> AsyncIterator[Api]:
    os.environ["KUBECONFIG"] = str(kubeconfig)
    api = Api(lambda: kopf.login_with_kubeconfig(settings=kopf.OperatorSettings()))
    try:
        yield api
    finally:
        await api.close()


async def _prepare(kubeconfig: Path, namespace: str) -> None:
    async with _api(kubeconfig) as api:
        await api.install(custom_resource_definition())
        await api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})


async def _change_services(kubeconfig: Path, namespace: str) -> None:
    """Services come, change and go, one of which cannot work; pods are said to run."""
    began = time.time()
    async with _api(kubeconfig) as api:

        async def until(share: float) -> None:
            while time.time() < began + share * SECONDS:
                await api.run_pods(namespace)
                await asyncio.sleep(2)

        await until(0.12)
        for number in range(6):
            body = service(name=f"chat-{number}", model={"uri": "package://a"})
            await api.create(SERVICES, namespace, body)
            await until(0.15 + 0.05 * number)
        # What KEDA it asks for is not there, and no router tells the demand of the other one.
        for engine in ("keda", "builtin"):
            body = service(name=engine, autoscaling={"engine": engine, "maxReplicas": 3})
            await api.create(SERVICES, namespace, body)
        for number in range(6):
            await api.patch_service(namespace, f"chat-{number}", {"replicas": 2 + number % 3})
            await until(0.5 + 0.04 * number)
        for number in range(3):
            made = await api.service(namespace, f"chat-{number}")
            await api.delete(SERVICES, namespace, f"chat-{number}", made["metadata"]["uid"])
            await until(0.8 + 0.05 * number)


def _range(watching: Prometheus, query: str, began: float, ended: float) -> list[Series]:
    """What a query finds, each second."""
    answer = httpx.get(
        f"{watching.url}/api/v1/query_range",
        params={"query": query, "start": began, "end": ended, "step": "1"},
        timeout=60,
    ).json()
    assert answer["status"] == "success", f"{query}: {answer}"
    return [
        (series["metric"], [(at, float(value)) for at, value in series["values"]])
        for series in answer["data"]["result"]
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        draw_all(Path(made))
