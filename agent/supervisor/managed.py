"""An engine core under supervision."""

from pagelet.engine.core.heartbeat import CoreState, Heartbeat, HeartbeatReader
from pagelet.process.child import ChildProcess
from pagelet.process.managed import Managed, Start


class ManagedCore(Managed):
    """An engine core: its heartbeat tells how it is."""

    def __init__(self, name: str, start: Start, heartbeat_path: str) -> None:
        super().__init__(name, start)
        self._reader = HeartbeatReader(heartbeat_path)

    def beat(self) -> Heartbeat | None:
        """The newest heartbeat of the process that runs now."""
        beat = self._reader.read()
        return beat if beat and self.process and beat.pid == self.process.pid else None

    def stage(self) -> str:
        beat = self.beat()
        return beat.stage if beat else super().stage()

    def _serves(self, process: ChildProcess) -> bool:
        beat = self.beat()
        return beat is not None and beat.state is CoreState.READY
