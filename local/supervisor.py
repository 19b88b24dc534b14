"""The supervisor of local mode: one process that makes a file's services run, and keeps them so."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pagelet.local import control
from pagelet.local.autoscaler import Autoscaler
from pagelet.local.control import Call, ControlError
from pagelet.local.log_files import RotatingLog
from pagelet.local.machine import visible_gpus
from pagelet.local.pools import Pools
from pagelet.local.router import Router
from pagelet.local.state_dir import AlreadyRuns, Owner, StateDir, UnusableStateDir
from pagelet.local.status import Status
from pagelet.local.wanted import MOST_REPLICAS, Wanted, read_wanted
from pagelet.process.atomic import write_atomically
from pagelet.process.runtime_dir import RuntimeDir
from pagelet.process.signals import CUT_OFF, CUT_OFF_SECONDS
from pagelet.process.watched import WatchedPath
from pagelet.protocol.inference_service.load import InvalidServices
from pagelet.protocol.router import RouterConfig

_TICK_SECONDS = 0.5
_FILE_REST_SECONDS = 0.3
_SAME_REQUEST_SECONDS = 0.5
"""A signal so soon after the first is the same wish to stop: a terminal and a wrapper such as make
or a shell both pass it on."""

log = logging.getLogger(__name__)


class Supervisor:
    """Runs what a file asks for until told to stop."""

    def __init__(
        self,
        file: Path,
        wanted: Wanted,
        state: StateDir,
        runtime: RuntimeDir,
        *,
        host: str,
        listener: socket.socket,
        url: str,
        replicas: Mapping[str, int],
        show: Callable[[Status], None],
    ) -> None:
        """`listener` is the endpoint. `replicas` are numbers in place of the file's, by the
        pools' names. `show` gets the status about twice a second."""
        self._file = file
        self._watched = WatchedPath(file, check_every=0.0)
        self._watched.changed()
        self._file_changed: float | None = None
        self._wanted = wanted
        self._problems: list[str] = []
        self._state = state
        self._state_trouble = ""
        self._owner = Owner(
            pid=os.getpid(), control=runtime.file("control"), file=str(file), host=host, url=url
        )
        self._runtime = runtime
        self._listener = listener
        self._url = url
        self._show = show
        self._wake = asyncio.Event()
        self._gpus = visible_gpus()
        self._replica_key_file = runtime.path / "replica-key"
        self._cache_salt_file = runtime.path / "cache-salt"
        for secret in (self._replica_key_file, self._cache_salt_file):
            write_atomically(secret, secrets.token_hex(32).encode())
        self._pools = Pools(state, runtime, self._gpus, self._replica_key_file, self._wake.set)
        self._pools.want(wanted)
        for pool, count in replicas.items():
            self._pools.scale(pool, count)
        self._stop_began: float | None = None
        self._exit_code = 0
        self._is_cut_off = False
        self._has_served = False
        self._warned: list[str] = []
        self.failures: list[str] = []
        """Why it gave up, if it did: what does not work, and why not."""
        self._router: Router
        self._router_is_due = False
        self._router_trouble = ""

    async def run(self) -> int:
        """Returns the exit code once everything has ended: 0 after a drain, 128 + the signal's
        number if it was cut short by a second one, 1 if nothing could work from the start (see
        `failures`)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, CUT_OFF):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, self._handle_signal, number)
        self._router = Router(
            self._router_config(),
            self._runtime.path / "router.json",
            self._listener,
            RotatingLog(self._state.log_path("router")),
            self._wake.set,
        )
        server = await control.listen(self._owner.control, self._handle)
        try:
            self._state.write_owner(self._owner)
            self._pools.reconcile()
            self._router.begin()
            scaling = asyncio.create_task(Autoscaler(self._pools, self._router.port).run())
            while self._stop_began is None:
                await self._tick()
            scaling.cancel()
            await self._end()
        finally:
            server.close()
        return self._exit_code

    async def _tick(self) -> None:
        try:
            async with asyncio.timeout(_TICK_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._keep_state()
        self._look_at_file()
        self._configure_router()
        self._pools.reconcile()
        status = self.status()
        self._warn(status.warnings)
        self._show(status)
        self._has_served |= any(pool.ready for pool in status.pools)
        if status.is_giving_up:
            self.failures = status.failures
            self._exit_code = 1
            self._stop()

    def _keep_state(self) -> None:
        """Stays within reach of the commands when someone removes the state directory."""
        try:
            was_removed = self._state.keep(self._owner)
        except (AlreadyRuns, UnusableStateDir) as error:
            trouble = str(error) or f"another `pagelet up` runs in {self._state.path} now"
            if trouble != self._state_trouble:
                log.error(
                    "commands do not reach this supervisor any more, `kill %d` ends it: %s",
                    *(self._owner.pid, trouble),
                )
            self._state_trouble = trouble
            return
        self._state_trouble = ""
        if was_removed:
            log.warning("%s was removed, and is made again", self._state.path)

    def _warn(self, warnings: list[str]) -> None:
        """Tells once of what is more than the machine has."""
        for warning in warnings:
            if warning not in self._warned:
                log.warning("warning: %s", warning)
        self._warned = warnings

    def status(self) -> Status:
        """What runs."""
        status = Status(
            file=str(self._file),
            url=self._url,
            problems=self._problems,
            warnings=self._pools.warnings(),
            router=self._router.status(),
            pools=self._pools.status(),
        )
        status.is_giving_up = bool(self.failures) or (status.is_hopeless and not self._has_served)
        return status

    def _look_at_file(self) -> None:
        """Applies a changed file once it has been left alone for a moment, so that one that is
        still being written is not read."""
        now = time.monotonic()
        if self._watched.changed():
            self._file_changed = now
        elif self._file_changed is not None and now - self._file_changed >= _FILE_REST_SECONDS:
            self._apply()

    def _apply(self) -> None:
        """Reads the file again; a broken one changes nothing."""
        self._file_changed = None
        try:
            wanted = read_wanted(self._file, len(self._gpus))
        except InvalidServices as error:
            if error.problems != self._problems:
                log.error("%s\nnothing is changed until the file is right", error)
            self._problems = error.problems
            return
        if self._problems:
            log.info("%s is right again", self._file)
        self._problems = []
        if wanted != self._wanted:
            log.info("%s has changed", self._file)
            self._wanted = wanted
            self._pools.want(wanted)
            self._router_is_due = True
            self._configure_router()

    def _configure_router(self) -> None:
        """Has the router take the file's settings over, as soon as they can be written."""
        try:
            if self._router_is_due:
                self._router.configure(self._router_config())
        except OSError as error:
            trouble = error.strerror or str(error)
            if trouble != self._router_trouble:
                log.error(
                    "the router keeps its settings until the new ones can be written to %s: %s",
                    *(self._runtime.path, trouble),
                )
            self._router_trouble = trouble
            return
        if self._router_trouble:
            log.info("the router has its new settings")
        self._router_is_due, self._router_trouble = False, ""

    def _router_config(self) -> RouterConfig:
        files = {name: str(self._pools.replicas_file(name)) for name in self._wanted.pools}
        if self._wanted.api_keys is None:
            return self._wanted.router_config(files, None, None)
        tenants = self._runtime.path / "tenants.yaml"
        write_atomically(tenants, self._wanted.api_keys)
        config = self._wanted.router_config(files, str(tenants), str(self._replica_key_file))
        config.cache_salt_secret_file = str(self._cache_salt_file)
        return config

    def _handle_signal(self, number: int) -> None:
        if number != CUT_OFF and self._stop_began is None:
            self._stop()  # whoever reads of it may count the time to the next signal from then
            log.info("draining; once more to stop at once")
        elif number == CUT_OFF or self._seconds_ending >= _SAME_REQUEST_SECONDS:
            log.warning("stopping at once")
            self._exit_code = 128 + number
            self._cut_off()

    @property
    def _seconds_ending(self) -> float:
        return 0.0 if self._stop_began is None else time.monotonic() - self._stop_began

    def _stop(self) -> None:
        if self._stop_began is None:
            self._stop_began = time.monotonic()
            self._wake.set()

    def _cut_off(self) -> None:
        """Ends all within `CUT_OFF_SECONDS`: the router first, which tells its clients; then, or
        after half of them, the replicas."""
        self._stop()
        self._is_cut_off = True
        self._router.cut_off(CUT_OFF_SECONDS)
        if self._router.ended.is_set():
            self._pools.cut_off(CUT_OFF_SECONDS)
        else:
            half = CUT_OFF_SECONDS / 2
            asyncio.get_running_loop().call_later(half, self._pools.cut_off, half)

    async def _end(self) -> None:
        """The router first: its streams need the replicas."""
        showing = asyncio.create_task(self._keep_showing())
        self._router.drain()
        await self._router.ended.wait()
        self._listener.close()
        if self._is_cut_off:
            self._pools.cut_off(CUT_OFF_SECONDS / 2)
        else:
            self._pools.drain()
        await self._pools.wait_ended()
        showing.cancel()

    async def _keep_showing(self) -> None:
        while True:
            self._keep_state()
            self._show(self.status())
            await asyncio.sleep(_TICK_SECONDS)

    async def _handle(self, call: Call) -> object:
        if self._stop_began is not None and call.command in ("apply", "scale"):
            raise ControlError("it is ending; start it again once it has ended")
        match call.command:
            case "apply":
                self._apply()
                self._pools.reconcile()
                if self._problems:
                    raise ControlError("\n".join(self._problems))
            case "scale":
                self._scale(call)
            case "stop":
                if call.at_once:
                    self._cut_off()
                else:
                    self._stop()
        return self.status()

    def _scale(self, call: Call) -> None:
        if call.pool in self._pools.scaled:
            raise ControlError(
                f"{call.pool} is scaled by its spec.autoscaling: change minReplicas and "
                "maxReplicas there, or take it out"
            )
        if not 0 <= call.replicas <= MOST_REPLICAS:
            raise ControlError(
                f"{call.replicas} replicas: one machine takes at most {MOST_REPLICAS}"
            )
        try:
            self._pools.scale(call.pool, call.replicas)
        except KeyError:
            names = ", ".join(self._wanted.pools)
            raise ControlError(f"there is no service {call.pool}; there is {names}") from None
        log.info("%s: scaled to %d", call.pool, call.replicas)
        self._pools.reconcile()
