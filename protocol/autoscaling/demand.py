"""How many replicas the work of a pool asks for.

The work is seen by routers, which are always there: also while a service has no replica. Each part
of a demand is in replicas and adds up over routers, so that whoever scales, an autoscaler of the
cluster or our own loop, takes their sum, and the largest part of it; what the targets are, the
routers know.

Queue length and KV use say how many requests there are, not how long they take. Here prompts count
by the seconds that a replica needs for them: tokens that no cache holds, over the measured prefill
rate. As a queue alone is short whenever there are enough replicas, and would ask for few of them
then, what arrives counts beside what waits.
"""

import dataclasses
from typing import Annotated, Final, Literal, get_args

import msgspec

PREFILL_USE: Final = 0.8
"""Share of its time for which a replica may be computing prompts, in the mean."""

Target = Literal["backlog", "concurrency", "kv"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
"""Parts of a demand."""

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class ScalingTargets(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much of each kind of work a replica is to have."""

    backlog_seconds: _Positive = 2.0
    """Within which the prompts that wait for their first token are worked off."""
    concurrency: _Positive = 256.0
    """Answers, waiting ones among them."""
    kv_use: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.85
    """Share of the KV cache that answers in flight fill."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Of one pool, as one router sees it."""

    queued_seconds: float = 0.0
    """For which one replica would prefill the prompts that wait, in the router or behind another
    prompt, without what is cached."""
    queued: float = 0.0
    """Such prompts. No more replicas than those help them, however long they are."""
    prefill_load: float = 0.0
    """Seconds of prefill that arrived, a second: replicas that prompts kept busy lately."""
    answers: float = 0.0
    """In flight and waiting."""
    kv_load: float = 0.0
    """KV caches that answers in flight fill."""


def demand(work: Work, targets: ScalingTargets) -> dict[Target, float]:
    """Replicas that each target asks for; not rounded, as the demands of routers add up first."""
    keep_up = work.prefill_load / PREFILL_USE
    catch_up = min(work.queued_seconds / targets.backlog_seconds, work.queued)
    return {
        "backlog": keep_up + catch_up,
        "concurrency": work.answers / targets.concurrency,
        "kv": work.kv_load / targets.kv_use,
    }
