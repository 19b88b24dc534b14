"""The pools of replicas as they are, and the steps that bring them to what is wanted."""

import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pagelet.local.log_files import RotatingLog
from pagelet.local.machine import choose_gpus, crowding, next_share, this_machine
from pagelet.local.replica import HOST, Replica
from pagelet.local.rollout import Phase, next_step
from pagelet.local.state_dir import StateDir
from pagelet.local.status import PoolStatus
from pagelet.local.wanted import PoolSpec, Wanted
from pagelet.process.atomic import write_atomically
from pagelet.process.listener import reserve
from pagelet.process.runtime_dir import RuntimeDir

_KEPT_LOGS = 20
"""Of a pool's replicas, those that have ended among them."""
_NOTICE_SECONDS = 1.0
"""For the router to send a replica nothing more, and to carry its streams to others."""

log = logging.getLogger(__name__)


class Pools:
    """All replicas of all services. `reconcile` is called whenever something changed."""

    def __init__(
        self,
        state: StateDir,
        runtime: RuntimeDir,
        gpus: Sequence[str],
        replica_key_file: Path,
        on_change: Callable[[], None],
    ) -> None:
        """`replica_key_file` has the key that the replicas of services with keys ask for."""
        self._state = state
        self._replica_key_file = replica_key_file
        self._runtime = runtime
        self._gpus = list(gpus)
        self._machine = this_machine()
        self._on_change = on_change
        self._specs: dict[str, PoolSpec] = {}
        self._replicas: list[Replica] = []  # in order of their start
        self._scaled: dict[str, tuple[int, int]] = {}  # pool -> by hand, in place of the file's
        self._autoscaled: dict[str, int] = {}
        self._numbers: dict[str, itertools.count[int]] = {}
        self._endpoint_numbers = itertools.count()
        self._listed: dict[str, bytes] = {}
        self._trouble = ""

    def want(self, wanted: Wanted) -> None:
        """Takes what a file asks for; `reconcile` makes it so."""
        self._specs = dict(wanted.pools)
        for name, count in list(self._autoscaled.items()):
            if name not in self.scaled:
                del self._autoscaled[name]
                if name in self._specs:
                    self.scale(name, count)  # whoever is no longer scaled stays as it is

    def scale(self, pool: str, replicas: int) -> None:
        """Sets the number of replicas by hand. It holds until the file's own number changes.
        Raises KeyError for a pool that is not there."""
        self._scaled[pool] = (replicas, self._specs[pool].replicas)

    @property
    def scaled(self) -> dict[str, PoolSpec]:
        """Pools whose number an autoscaler sets."""
        return {name: spec for name, spec in self._specs.items() if spec.is_scaled}

    def autoscale(self, pool: str, replicas: int) -> None:
        """Sets the number of replicas of one of them."""
        self._autoscaled[pool] = replicas
        self._on_change()

    def wanted_replicas(self, pool: str) -> int:
        """As scaled, by hand or by the file; 0 for a pool that is no longer in it."""
        spec = self._specs.get(pool)
        if spec is None:
            return 0
        if spec.is_scaled:
            return self._autoscaled.get(pool, spec.replicas)
        by_hand, instead_of = self._scaled.get(pool, (spec.replicas, spec.replicas))
        return by_hand if instead_of == spec.replicas else spec.replicas

    def replicas_file(self, pool: str) -> Path:
        """Where the router reads which replicas a pool has."""
        return self._runtime.path / f"{pool}.replicas.json"

    def reconcile(self) -> None:
        """Starts and drains what is due, and tells the router. What the system has no room for now
        is left for the next call: what serves must go on."""
        trouble = ""
        try:
            self._reconcile()
        except OSError as error:
            trouble = error.strerror or str(error)
        if trouble and trouble != self._trouble:
            log.error(
                "changes of replicas wait until the system has room for them: %s (files are in %s)",
                *(trouble, self._runtime.path),
            )
        elif self._trouble and not trouble:
            log.info("changes of replicas go on")
        self._trouble = trouble

    def _reconcile(self) -> None:
        for replica in [r for r in self._replicas if r.ended.is_set()]:
            replica.release()
            self._replicas.remove(replica)
        for pool in dict.fromkeys([*self._specs, *(r.pool for r in self._replicas)]):
            self._step(pool)
        self._tell_router()

    def _step(self, pool: str) -> None:
        replicas = [r for r in self._replicas if r.pool == pool]
        spec, wanted = self._specs.get(pool), self.wanted_replicas(pool)
        surge, unavailable = (spec.surge(wanted), spec.unavailable(wanted)) if spec else (0, 0)
        if spec and spec.num_gpus and self._choose_gpus(spec) is None:
            surge, unavailable = 0, max(1, unavailable)  # a GPU must become free first
        fingerprint = spec.fingerprint if spec else ""
        step = next_step(wanted, surge, unavailable, [r.view(fingerprint) for r in replicas])
        for replica in replicas:
            if replica.name in step.drain:
                log.info("%s: draining (%d in flight)", replica.name, replica.load.in_flight)
                replica.drain(_NOTICE_SECONDS)
        for _ in range(step.start):
            if spec is None or not self._start(spec):
                break

    def _start(self, spec: PoolSpec) -> bool:
        """Whether there was room for one more."""
        gpus = self._choose_gpus(spec)
        if gpus is None:
            return False
        chat_template, holder = self._chat_template_file(spec), reserve(HOST, 0)
        number = next(self._numbers.setdefault(spec.name, itertools.count(1)))
        name = f"{spec.name}-{number}"
        self._state.remove_log(f"{spec.name}-{number - _KEPT_LOGS}")
        endpoint = f"ipc://{self._runtime.file(f'events-{next(self._endpoint_numbers)}')}"
        replica = Replica(
            name,
            spec,
            holder,
            RotatingLog(self._state.log_path(name)),
            share=0.0 if gpus else self._next_share(),
            gpus=gpus,
            kv_events=(endpoint, f"{endpoint}-replay"),
            api_key_file=str(self._replica_key_file) if spec.is_guarded else None,
            chat_template=chat_template,
            on_change=self._on_change,
        )
        self._replicas.append(replica)
        replica.begin()
        return True

    def _chat_template_file(self, spec: PoolSpec) -> str | None:
        """One for each text: a replica that starts again reads what it read before."""
        if spec.chat_template is None:
            return None
        path = self._runtime.path / f"{spec.name}.{spec.fingerprint}.jinja"
        if not path.exists():
            write_atomically(path, spec.chat_template.encode())
        return str(path)

    def _choose_gpus(self, spec: PoolSpec) -> list[str] | None:
        taken = {gpu for replica in self._replicas for gpu in replica.gpus}
        return choose_gpus(spec.num_gpus, self._gpus, taken)

    def _next_share(self) -> float:
        on_cpu = {name: spec for name, spec in self._specs.items() if not spec.num_gpus}
        wanted = sum(
            spec.most_replicas if spec.is_scaled else self.wanted_replicas(name)
            for name, spec in on_cpu.items()
        )
        return next_share(wanted, [replica.share for replica in self._replicas])

    def _tell_router(self) -> None:
        """Lists the replicas that take requests, and those that may keep responses still."""
        for pool in self._specs:
            listed = [
                {
                    "id": replica.name,
                    "url": replica.url,
                    "takes_requests": replica.phase is Phase.READY,
                }
                for replica in self._replicas
                if replica.pool == pool and replica.has_served
            ]
            content = msgspec.json.encode(listed)
            if self._listed.get(pool) != content:
                write_atomically(self.replicas_file(pool), content)
                self._listed[pool] = content

    def drain(self) -> None:
        """Lets every replica finish, for good."""
        for replica in self._replicas:
            replica.drain()

    def cut_off(self, seconds: float) -> None:
        """Ends every replica at once; clients of theirs are told, for which they have so long."""
        for replica in self._replicas:
            replica.cut_off(seconds)

    async def wait_ended(self) -> None:
        """Until every replica has ended."""
        for replica in self._replicas:
            await replica.ended.wait()
            replica.release()

    def warnings(self) -> list[str]:
        """What is wanted beyond the machine."""
        demands = [spec.demand(self.wanted_replicas(name)) for name, spec in self._specs.items()]
        return list(crowding([demand for demand in demands if demand.replicas], self._machine))

    def status(self) -> list[PoolStatus]:
        """As it is shown; pools that are about to go away last."""
        pools = dict.fromkeys([*self._specs, *(r.pool for r in self._replicas)])
        return [self._pool_status(pool) for pool in pools]

    def _pool_status(self, pool: str) -> PoolStatus:
        spec = self._specs.get(pool)
        fingerprint = spec.fingerprint if spec else ""
        return PoolStatus(
            name=pool,
            model=spec.service.served_names[0] if spec else "",
            wanted=self.wanted_replicas(pool),
            replicas=[r.status(fingerprint) for r in self._replicas if r.pool == pool],
        )
