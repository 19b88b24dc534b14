"""The replicas of one pool as a router knows them, and the choice among them."""

from collections.abc import Collection

from pagelet.protocol.kv_events import KVEventBatch
from pagelet.protocol.replica import ReplicaDescription
from pagelet.protocol.router import RoutingOptions
from pagelet.router.routing.types import Decision, RouteRequest


class Ticket:
    """One request in flight on one replica. Every ticket must end, once; later calls do nothing."""

    def on_first_byte(self, now: float) -> None:
        """The first token arrived: the prompt's prefill is done."""
        raise NotImplementedError

    def on_tokens(self, count: int, now: float) -> None:
        """`count` more tokens were generated."""
        raise NotImplementedError

    def on_end(self, now: float, *, ok: bool, actual_hit_tokens: int | None = None) -> None:
        """The answer is complete, failed or was cancelled; `actual_hit_tokens` is what the replica
        says that its cache held (`usage.prompt_tokens_details.cached_tokens`)."""
        raise NotImplementedError


class Fleet:
    """All state of a pool's routing. Not thread-safe: one event loop owns it. `now` is any
    monotonic clock in seconds, always the same one."""

    def __init__(self, options: RoutingOptions, *, seed: int = 0) -> None:
        raise NotImplementedError

    def add(self, replica_id: str, description: ReplicaDescription | None, now: float) -> None:
        """Adds a replica, or takes its new description in; a new incarnation starts empty."""
        raise NotImplementedError

    def remove(self, replica_id: str) -> None:
        """Forgets a replica and all that it holds. Its tickets may still end."""
        raise NotImplementedError

    def choose(
        self,
        request: RouteRequest,
        now: float,
        *,
        excluded: Collection[str] = (),
        eligible: Collection[str],
    ) -> Decision | None:
        """The replica for a request; None if no known one is eligible and not excluded."""
        raise NotImplementedError

    def dispatch(self, request: RouteRequest, decision: Decision, now: float) -> Ticket:
        """Counts the request as sent to the decision's replica."""
        raise NotImplementedError

    def apply_events(self, replica_id: str, batch: KVEventBatch) -> None:
        """Takes in what a replica's prefix cache gained and lost; from then on its events are the
        truth about it."""
        raise NotImplementedError

    def reset(self, replica_id: str) -> None:
        """Forgets what a replica holds, as when events were lost or it restarted."""
        raise NotImplementedError
