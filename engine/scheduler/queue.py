"""The waiting queue: first come first served, or by priority."""

import bisect
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from pagelet.engine.scheduler.request import Request


class WaitingQueue(Protocol):
    """Requests in the order in which they will be admitted."""

    def push(self, request: Request) -> None:
        """Adds a request that came in."""
        ...

    def push_front(self, request: Request) -> None:
        """Puts back a request that was taken or preempted; its place is before newer ones."""
        ...

    def peek(self) -> Request:
        """The next one; the queue must not be empty."""
        ...

    def pop(self) -> Request:
        """Takes the next one."""
        ...

    def remove(self, request: Request) -> None:
        """Takes out a request from anywhere."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FCFSQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def push(self, request: Request) -> None:
        self._queue.append(request)

    def push_front(self, request: Request) -> None:
        self._queue.appendleft(request)

    def peek(self) -> Request:
        return self._queue[0]

    def pop(self) -> Request:
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


class PriorityQueue:
    """Smallest (priority, order of arrival) first."""

    def __init__(self) -> None:
        self._backwards: list[Request] = []
        """The next one last: in every step the scheduler looks at the first few, and takes some."""

    @staticmethod
    def _rank(request: Request) -> tuple[int, int]:
        return -request.priority, -request.order

    def push(self, request: Request) -> None:
        bisect.insort(self._backwards, request, key=self._rank)

    push_front = push

    def peek(self) -> Request:
        return self._backwards[-1]

    def pop(self) -> Request:
        return self._backwards.pop()

    def remove(self, request: Request) -> None:
        index = bisect.bisect_left(self._backwards, self._rank(request), key=self._rank)
        assert self._backwards[index] is request
        del self._backwards[index]

    def __len__(self) -> int:
        return len(self._backwards)

    def __iter__(self) -> Iterator[Request]:
        return reversed(self._backwards)
