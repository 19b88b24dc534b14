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

from pagelet.protocol.autoscaling.objective import Prompts, need

PREFILL_USE: Final = 0.8
"""Share of its time for which a replica may be computing prompts, in the mean."""

Target = Literal["backlog", "ttft", "tpot", "concurrency", "kv"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
"""Parts of a demand."""

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class ScalingTargets(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much of each kind of work a replica is to have."""

    backlog_seconds: _Positive = 2.0
    """Within which the prompts that wait for their first token are worked off."""
    ttft_seconds: _Positive | None = None
    """Time to first token that prompts are to keep, in place of `backlog_seconds`."""
    tpot_seconds: _Positive | None = None
    """Time between two tokens of an answer that is to be kept in the mean."""
    concurrency: _Positive = 256.0
    """Answers, waiting ones among them."""
    kv_use: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.85
    """Share of the KV cache that answers in flight fill."""


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeLine:
    """Seconds between two tokens of an answer: `base + each x answers` of a replica at once."""

    base: float
    each: float

    def answers(self, seconds: float) -> float:
        """Of a replica at once that keep a time; 1 if it keeps that with none."""
        return max(1.0, (seconds - self.base) / self.each)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Of one pool, as one router sees it."""

    queued_seconds: float = 0.0
    """For which one replica would prefill the prompts that wait, in the router or behind another
    prompt, without what is cached."""
    queued: float = 0.0
    """Such prompts. No more replicas than those help them, however long they are."""
    prompts: Prompts = dataclasses.field(default_factory=Prompts)
    """Those that arrived lately: `prompts.load` replicas were kept busy by them."""
    answers: float = 0.0
    """In flight and waiting."""
    decode: DecodeLine | None = None
    """Of a replica; None while no answer was seen."""
    kv_load: float = 0.0
    """KV caches that answers in flight fill."""


def demand(work: Work, targets: ScalingTargets) -> dict[Target, float]:
    """Replicas that each target asks for; not rounded, as the demands of routers add up first."""
    backlog = ttft = 0.0
    if targets.ttft_seconds is None:
        keep_up = work.prompts.load / PREFILL_USE
        backlog = keep_up + min(work.queued_seconds / targets.backlog_seconds, work.queued)
    else:
        steady = need(work.prompts, targets.ttft_seconds)
        more = max(0.0, work.queued_seconds - steady.queued_seconds)
        ttft = steady.replicas + min(more / steady.slack_seconds, work.queued)
    tpot = 0.0
    if targets.tpot_seconds is not None and work.decode is not None:
        tpot = work.answers / work.decode.answers(targets.tpot_seconds)
    return {
        "backlog": backlog,
        "ttft": ttft,
        "tpot": tpot,
        "concurrency": work.answers / targets.concurrency,
        "kv": work.kv_load / targets.kv_use,
    }
