"""Requests that wait for a replica: one waiting room a pool.

Capacity is answers in flight: as many as its replicas take together. A permit stands for a
request that a replica has or will get; while permits are out for the whole capacity, requests
wait, and each that ends wakes exactly one. With no replica there is no capacity, so requests are
held until one comes or their time is up.
"""

import dataclasses


@dataclasses.dataclass(slots=True)
class Ask:
    """A request that wants a permit."""

    tenant: str
    weight: float
    priority: int
    """As vLLM has it: the lowest goes first."""
    cost: float
    """Tokens that it is thought to read and write."""
    answers: int = 1


class Permit:
    """Leave to send a request to some replica of the pool, through all its retries."""

    waited_seconds: float

    def settle(self, tokens: int) -> None:
        """What the request has really cost, in tokens, for the fairness of those after it."""
        raise NotImplementedError

    def release(self) -> None:
        """The request is over; wakes the next. Later calls do nothing."""
        raise NotImplementedError


class WaitingRoom:
    """The queue of one pool."""

    def __init__(self, *, size: int, timeout: float) -> None:
        raise NotImplementedError

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        raise NotImplementedError

    def set_capacity(self, answers: int) -> None:
        """Most answers in flight from now on; 0 while there is no replica."""
        raise NotImplementedError

    async def enter(self, ask: Ask) -> Permit:
        """Waits for a permit. Raises `ApiError`: 429 if the room is full, 503 with Retry-After when
        the time is up. Cancellation leaves at once."""
        raise NotImplementedError
