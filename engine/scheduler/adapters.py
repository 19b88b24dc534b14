"""Which adapters the requests of a scheduler have."""

from collections import Counter
from collections.abc import Iterable

from pagelet.engine.scheduler.request import Request


class AdapterUse:
    """Counts the unfinished requests of each adapter, so that a step need not look at all that wait
    to tell whose they are."""

    def __init__(self, most: int | None) -> None:
        """Running requests have at most `most` different adapters; None: adapters are off."""
        self.most = most
        self._unfinished: Counter[str] = Counter()

    def begin(self, request: Request) -> None:
        """Takes in a request."""
        if request.lora is not None:
            self._unfinished[request.lora.name] += 1

    def end(self, request: Request) -> None:
        """A request that was taken in is over."""
        if request.lora is not None:
            self._unfinished[request.lora.name] -= 1
            if not self._unfinished[request.lora.name]:
                del self._unfinished[request.lora.name]

    def may_run(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether the request's adapter may join those of the running requests."""
        if request.lora is None or self.most is None:
            return True
        digests = {other.lora.digest for other in running if other.lora is not None}
        return len(digests | {request.lora.digest}) <= self.most

    def in_use(self, running: Iterable[Request]) -> tuple[list[str], list[str]]:
        """Names of the adapters of running requests, and of those that wait; both in order. One may
        be in both."""
        if not self._unfinished:
            return [], []
        runs = Counter(request.lora.name for request in running if request.lora is not None)
        waits = [name for name, number in self._unfinished.items() if number > runs[name]]
        return sorted(runs), sorted(waits)
