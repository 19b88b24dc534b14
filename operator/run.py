"""The operator's process: `pagelet operator`.

kopf watches the InferenceServices, and is asked for nothing else: with no handler but `on.event` it
writes no annotation and no finalizer on them (nolar/kopf#833), so that they can be deleted whether
an operator is there or not. What it reports goes to a queue; all work is level-triggered.
"""

import asyncio
import logging
import signal
import time
from typing import Any, Final

import kopf

from pagelet.operator import http
from pagelet.operator.autoscaler import Autoscaler
from pagelet.operator.budget import Budget
from pagelet.operator.children import Children
from pagelet.operator.kube.client import ApiError, Client, login
from pagelet.operator.kube.reflector import Key
from pagelet.operator.leader import Leader, LostLease
from pagelet.operator.metrics import Metrics
from pagelet.operator.reconciler import Reconciler, Refused
from pagelet.operator.recorder import Recorder
from pagelet.operator.replicas import Replicas
from pagelet.operator.services import Services
from pagelet.operator.settings import OperatorSettings
from pagelet.operator.work_queue import WorkQueue
from pagelet.protocol.inference_service.kind import GROUP, PLURAL, VERSION

_SETTLE_SECONDS: Final = 0.2
"""A change comes with others, as all pods of a rollout: they are looked at together."""
_LOOK_AGAIN_SECONDS: Final = 10.0
"""For events of pods that wait, which are not watched: there are many, and few matter."""

log = logging.getLogger(__name__)


class Operator:
    """All parts of one operator."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._started_at = time.monotonic()
        self._metrics = Metrics()
        self._client = Client(login)
        self._queue: WorkQueue[Key] = WorkQueue(self._reconcile)
        namespaces: list[str | None] = [*settings.namespaces] or [None]
        self._services = Services(self._client, namespaces, self._service_changed)
        self._budget = Budget(self._services, settings.accelerator_budget)
        self._shares_are_due = False
        self._children = [
            Children(self._client, namespace, self._enqueue, settings.relist_seconds)
            for namespace in namespaces
        ]
        self._namespaces = namespaces
        self._leader = Leader(self._client, settings.lease_namespace, settings.identity)
        self._replicas = [Replicas(self._client, children) for children in self._children]
        recorder = Recorder(self._client)
        self._reconcilers = [
            Reconciler(
                self._client,
                self._services,
                children,
                replicas,
                recorder,
                self._metrics,
                settings.context,
                self._budget,
            )
            for children, replicas in zip(self._children, self._replicas, strict=True)
        ]

        self._autoscaler = Autoscaler(
            self._client, self._services, self._children_of, self._metrics
        )

    def stop(self) -> None:
        """Lets `run` end."""
        self._stop.set()

    async def run(self) -> None:
        """Until told to stop. Raises LostLease, in a group, if another operator took over."""
        settings = self._settings
        server = await http.serve(settings.host, settings.port, self._metrics, self._why_unhealthy)
        stopping = asyncio.ensure_future(self._stop.wait())
        working = asyncio.ensure_future(self._work())
        try:
            done, _ = await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
            if working in done:
                working.result()
        finally:
            for task in (stopping, working):
                task.cancel()
            await asyncio.gather(stopping, working, return_exceptions=True)
            await self._leader.release()
            await server.cleanup()
            for replicas in self._replicas:
                await replicas.close()
            await self._autoscaler.close()
            await self._client.close()

    async def _work(self) -> None:
        """Everybody watches, so that the next leader begins at once; the leader acts."""
        async with asyncio.TaskGroup() as tasks:
            for children in self._children:
                for reflector in children.reflectors:
                    tasks.create_task(reflector.run())
            tasks.create_task(self._watch_services())
            tasks.create_task(self._services.keep_listing(self._settings.relist_seconds))
            tasks.create_task(self._report_metrics())
            tasks.create_task(self._leader.lead(self._act))

    async def _act(self) -> None:
        for children in self._children:
            for reflector in children.reflectors:
                await reflector.listed.wait()  # else what is there would be taken to be missing
        for key in self._services.all_keys():
            self._queue.add(key)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(self._settings.workers, self._failed))
            for replicas in self._replicas:
                tasks.create_task(replicas.keep_asking(self._settings.replica_seconds))
            tasks.create_task(self._autoscaler.run(self._settings.autoscale_seconds))

    async def _watch_services(self) -> None:
        registry = kopf.OperatorRegistry()
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True  # no watch of CRDs and namespaces, and no right to it
        settings.watching.server_timeout = self._settings.relist_seconds
        settings.watching.client_timeout = self._settings.relist_seconds + 10
        settings.watching.connect_timeout = 5

        @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
        async def saw(type: str | None, body: kopf.Body, **_: Any) -> None:
            found = dict(body)
            if type == "DELETED":
                self._services.saw_deleted(found)
            else:
                self._services.saw(found)

        @kopf.on.login(registry=registry)
        def log_in(**_: Any) -> kopf.ConnectionInfo:
            return login()

        ready = asyncio.Event()
        taking = asyncio.ensure_future(self._take_signals(ready))
        try:
            await kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                clusterwide=not self._settings.namespaces,
                namespaces=self._settings.namespaces,
                ready_flag=ready,
            )
        finally:
            taking.cancel()
        self.stop()

    async def _take_signals(self, kopf_is_ready: asyncio.Event) -> None:
        """kopf sets handlers of its own, and at a signal waits five seconds for tasks that are not
        its own. With ours, all tasks end at once."""
        await kopf_is_ready.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def _reconcile(self, key: Key) -> None:
        if await self._reconcilers[self._index(key)].reconcile(key):
            self._queue.add_later(key, _LOOK_AGAIN_SECONDS)

    def _children_of(self, key: Key) -> Children:
        return self._children[self._index(key)]

    def _index(self, key: Key) -> int:
        """Of what serves a service's namespace."""
        return 0 if self._namespaces == [None] else self._namespaces.index(key[0])

    def _service_changed(self, key: Key) -> None:
        self._enqueue(key)
        self._budget.expire()
        if not self._shares_are_due:
            self._shares_are_due = True
            asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._share_out)

    def _share_out(self) -> None:
        """Has services looked at that get another part of the budget."""
        self._shares_are_due = False
        for key in self._budget.changes():
            self._enqueue(key)

    def _enqueue(self, key: Key) -> None:
        self._queue.add_later(key, _SETTLE_SECONDS)

    def _failed(self, key: Key, error: Exception) -> None:
        self._metrics.errors.value += 1
        name = "/".join(key)
        if isinstance(error, Refused | ApiError):
            log.warning("%s: %s", name, error)
        elif isinstance(error, OSError | TimeoutError):
            log.warning("%s: the API server cannot be reached: %r", name, error)
        else:
            log.error("%s: cannot be reconciled", name, exc_info=error)

    def _why_unhealthy(self) -> str | None:
        listed = [(PLURAL, self._services.listed_at)]
        for children in self._children:
            listed += [(each.resource.plural, each.listed_at) for each in children.reflectors]
        return http.unhealthy(listed, self._settings.relist_seconds, self._started_at)

    async def _report_metrics(self) -> None:
        while True:
            self._metrics.leader.value = int(self._leader.holds)
            self._metrics.queue_length.value = len(self._queue)
            self._metrics.requests.value = self._client.requests
            await asyncio.sleep(1)


def main(settings: OperatorSettings) -> int:
    """Runs until SIGTERM or SIGINT. Exit code 0, or 1 if another operator took over."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)

    async def run() -> None:
        await Operator(settings).run()

    exit_code = 0
    try:
        asyncio.run(run())
    except* LostLease as lost:
        log.error("%s; ending, to begin anew as a candidate", lost.exceptions[0])
        exit_code = 1
    except* kopf.LoginError as refused:
        log.error("%s", refused.exceptions[0])
        exit_code = 1
    return exit_code
