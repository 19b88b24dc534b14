"""CUDA graphs without CUDA: what was captured runs again, on the same tensors, at each replay."""

from collections.abc import Callable


class FakeGraphs:
    """Implements `GraphBackend`. What a real graph could not do it cannot find out: functions that
    read something other than their tensors would get the values of now, a graph those of then."""

    def __init__(self) -> None:
        self.replays: list[int] = []
        """The numbers of the graphs that were replayed, in the order of their capture."""
        self._captured = 0

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """See `GraphBackend`."""
        number = self._captured
        self._captured += 1
        function()

        def replay() -> None:
            self.replays.append(number)
            function()

        return replay
