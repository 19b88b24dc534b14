"""Who gets how many replicas where accelerators are fewer than all services together ask for."""

import dataclasses
import itertools
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one service asks for."""

    name: str
    priority: int
    """The highest is served first."""
    each: int
    """Accelerators a replica, at least 1."""
    least: int
    """Replicas that it gets before any other service gets more than its own least."""
    wanted: int


def allot(budget: int, claims: Iterable[Claim]) -> dict[str, int]:
    """Replicas of each service: never more than it wants, nor more accelerators than `budget` in
    all. Services of one priority get one replica after the other in turn."""
    order = sorted(claims, key=lambda claim: (-claim.priority, claim.name))
    given = dict.fromkeys((claim.name for claim in order), 0)
    left = budget
    for claim in order:
        given[claim.name] = min(claim.least, claim.wanted, left // claim.each)
        left -= given[claim.name] * claim.each
    for _, group in itertools.groupby(order, key=lambda claim: claim.priority):
        asking = list(group)
        while asking:
            asking = [
                claim for claim in asking if given[claim.name] < claim.wanted and claim.each <= left
            ]
            for claim in sorted(asking, key=lambda claim: given[claim.name]):
                if claim.each <= left:
                    given[claim.name] += 1
                    left -= claim.each
    return given
