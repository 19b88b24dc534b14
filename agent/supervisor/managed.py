"""An engine core under supervision."""

from pagelet.agent.supervisor.watchdog import Watchdog
from pagelet.engine.core.heartbeat import CoreState, Heartbeat, HeartbeatReader
from pagelet.process.child import ChildProcess
from pagelet.process.managed import Managed, Start


class ManagedCore(Managed):
    """An engine core: its heartbeat tells how it is."""

    def __init__(self, name: str, start: Start, heartbeat_path: str, step_timeout: float) -> None:
        """`step_timeout` is that of the `Watchdog`."""
        super().__init__(name, start)
        self._reader = HeartbeatReader(heartbeat_path)
        self._watchdog = Watchdog(step_timeout)

    def beat(self) -> Heartbeat | None:
        """The newest heartbeat of the process that runs now."""
        beat = self._reader.read()
        return beat if beat and self.process and beat.pid == self.process.pid else None

    def stage(self) -> str:
        beat = self.beat()
        return beat.stage if beat else super().stage()

    def _hang(self, process: ChildProcess) -> str | None:
        hang = self._watchdog.look(self.beat())
        return None if hang is None else str(hang)

    def _serves(self, process: ChildProcess) -> bool:
        beat = self.beat()
        return beat is not None and beat.state is CoreState.READY
