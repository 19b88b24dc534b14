"""How many replicas keep a time to first token.

Replicas are servers with one queue in front of them, which is what a router makes of them that
sends each prompt where it waits least. Of such a queue the share of prompts that wait is Erlang's
formula C, and how long they do falls off exponentially (Kimura, "Approximations for multi-server
queues", 1983; exact where the prompts' times are exponential, too). So a prompt's time to first
token is what it takes on an idle replica, and such a wait.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

SHARE_IN_TIME: Final = 0.95
"""Of the prompts that an idle replica would answer in time: what is longer, no number of replicas
makes quicker, and it only counts as work."""
_MANY: Final = 1000
"""Replicas kept busy, from which on hardly a prompt waits if there are a few more."""
_FEW_MORE: Final = 1.1
_MOST_START: Final = 0.5
"""Of the objective, that the start may take: under load others' work is seen as a part of it."""
_NEVER: Final = 1e-300
_LEAST_SLACK: Final = 0.1
"""Of the objective, that waiting prompts are left at least."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """What arrived lately."""

    load: float = 0.0
    """Seconds of prefill a second: replicas that are kept busy."""
    start_seconds: float = 0.0
    """What a first token takes besides the prefill of prompts."""
    sizes: Sequence[tuple[float, float]] = ()
    """Seconds of prefill of a prompt, and how many such ones there are, in any unit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """Replicas that keep an objective."""

    replicas: float
    """Not whole: between two counts by how much each misses it."""
    queued_seconds: float
    """Of prefill, that wait in the mean although there are so many."""
    slack_seconds: float
    """For which a prompt may wait, in the mean."""


def need(prompts: Prompts, ttft_seconds: float) -> Need:
    """How many replicas answer `SHARE_IN_TIME` of the prompts within `ttft_seconds`, of those that
    an idle one would."""
    budget = ttft_seconds - min(prompts.start_seconds, _MOST_START * ttft_seconds)
    count = sum(weight for _, weight in prompts.sizes)
    in_time = [(size, weight) for size, weight in prompts.sizes if size < budget]
    quick = sum(weight for _, weight in in_time)
    own = sum(size * weight for size, weight in in_time) / quick if quick else 0.0
    slack = max(budget - own, _LEAST_SLACK * ttft_seconds)
    if not count or prompts.load <= 0:
        return Need(0.0, 0.0, slack)
    if prompts.load >= _MANY:
        return Need(prompts.load * _FEW_MORE, 0.0, slack)
    mean = sum(size * weight for size, weight in prompts.sizes) / count
    residual = sum(size**2 * weight for size, weight in prompts.sizes) / count / (2 * mean)
    goal, before = 1 - SHARE_IN_TIME, 1.0
    for replicas, waits in _waiting(prompts.load):
        drain = (replicas - prompts.load) / residual
        """The rate at which the share of prompts falls that wait for a time, with that time."""
        late = sum(weight * math.exp((size - budget) * drain) for size, weight in in_time)
        missed = waits * late / quick if quick else 0.0
        if missed <= goal:
            break
        before = missed
    steps = math.log(before / goal) / math.log(before / max(missed, _NEVER))
    wait = waits * residual / (replicas - prompts.load)
    least = prompts.load  # with fewer the queue grows without end
    return Need(max(least, replicas - 1 + steps), prompts.load * wait, slack)


def _waiting(load: float) -> Iterator[tuple[int, float]]:
    """For each count of replicas above `load`, the share of prompts that wait: Erlang's C, by his
    B, which is computed from count to count."""
    lost = 1.0
    for replicas in itertools.count(1):
        lost = load * lost / (replicas + load * lost)
        if replicas > load:
            yield replicas, replicas * lost / (replicas - load * (1 - lost))
