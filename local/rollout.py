"""What a pool needs next: which replicas to start, and which to drain. Pure.

The rules are those of a Deployment's rolling update: never more than `replicas + surge` at once,
and never fewer ready ones than `replicas - unavailable`, unless fewer are ready by themselves.
"""

import dataclasses
import enum
from collections.abc import Sequence


class Phase(enum.StrEnum):
    """What a process is at."""

    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backoff"
    """It died, and is started again after a while."""
    FAILED = "failed"
    """Its configuration cannot work."""
    DRAINING = "draining"
    """It takes no new requests and ends with the last one."""
    STOPPED = "stopped"


@dataclasses.dataclass(frozen=True)
class ReplicaView:
    """One replica, as far as decisions about it go."""

    id: str
    is_current: bool
    """Whether it is what the file asks for now."""
    phase: Phase
    in_flight: int = 0
    """Requests that would have to be waited for."""


@dataclasses.dataclass(frozen=True)
class Step:
    """What to do at once."""

    start: int
    """Replicas to add."""
    drain: tuple[str, ...]
    """Replicas to take away, by id."""


def next_step(replicas: int, surge: int, unavailable: int, views: Sequence[ReplicaView]) -> Step:
    """The next step towards `replicas` current ones. `views` are in order of their start.

    Of equal replicas, those go first that have the least work in flight; of those, the ones that
    are not ready, then the youngest, whose caches have seen the least.
    """
    living = [view for view in views if view.phase not in (Phase.DRAINING, Phase.STOPPED)]
    current = [view for view in living if view.is_current]
    old = [view for view in living if not view.is_current]
    idle_old = [view for view in old if view.phase is not Phase.READY]
    surplus = _by_loss(current)[: max(0, len(current) - replicas)]
    drain = [*idle_old, *surplus]
    staying = len(living) - len(drain)
    ready = sum(view.phase is Phase.READY for view in living if view not in drain)
    spare = max(0, ready - max(0, replicas - unavailable))
    drain += _by_loss([view for view in old if view not in idle_old])[:spare]
    missing = replicas - (len(current) - len(surplus))
    room = replicas + surge - (staying - min(spare, len(old) - len(idle_old)))
    return Step(start=max(0, min(missing, room)), drain=tuple(view.id for view in drain))


def _by_loss(views: Sequence[ReplicaView]) -> list[ReplicaView]:
    youngest_first = reversed(views)
    # One that is ready, but too new for the router to be sure of it, may have work all the same.
    return sorted(youngest_first, key=lambda v: (v.in_flight, v.phase is Phase.READY))
