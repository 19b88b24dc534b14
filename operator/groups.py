"""Which groups of pods a service's replicas of several nodes are: pure functions.

A group is made once and never changed. One whose pods are not all what they were is replaced as a
whole, as LeaderWorkerSet's RecreateGroupOnPodRestart does for pods; a container that only starts
again is left to the engine, whose nodes then all begin anew. Another spec makes other groups beside
the old ones, and takes those away as `rollout` allows.
"""

import dataclasses
import datetime
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from pagelet.operator.children import COST_ANNOTATION
from pagelet.operator.kube.resources import Object
from pagelet.operator.planning.objects import (
    GROUP_LABEL,
    REVISION_LABEL,
    TEMPLATE_LABEL,
)
from pagelet.operator.replicas import is_ready
from pagelet.protocol.inference_service.rollout import Rollout, rollout_bounds

MEMBERS_ANNOTATION: Final = "pagelet.dev/members"
"""UIDs of a group's pods, once all are there: another pod of the same name is a replacement."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """A StatefulSet and its pods, as they are in the cluster."""

    name: str
    revision: str
    index: int
    size: int
    """Pods that it has when it is whole."""
    template: str
    """Digest of what it was made from."""
    created: str
    """When, in RFC 3339."""
    members: frozenset[str] | None
    pods: Sequence[Object]

    @property
    def live(self) -> frozenset[str]:
        """UIDs of the pods that have not ended and are not about to."""
        return frozenset(
            pod["metadata"]["uid"]
            for pod in self.pods
            if "deletionTimestamp" not in pod["metadata"]
            and pod["status"].get("phase") not in ("Failed", "Succeeded")
        )

    @property
    def is_whole(self) -> bool:
        """Whether all of its pods are there."""
        return len(self.live) == len(self.pods) == self.size

    @property
    def is_broken(self) -> bool:
        """Whether one of its pods has ended, or is another one than before."""
        return len(self.live) < len(self.pods) or not (self.members or frozenset()) <= self.live

    @property
    def is_ready(self) -> bool:
        """Whether all of its pods are."""
        return self.is_whole and not self.is_broken and all(is_ready(pod) for pod in self.pods)

    @property
    def cost(self) -> int:
        """What would be lost with it: what its head has in flight."""
        costs = (pod["metadata"]["annotations"].get(COST_ANNOTATION, "0") for pod in self.pods)
        return sum(map(int, costs))

    def age(self, now: str) -> float:
        """In seconds at a time in RFC 3339."""
        began, ends = map(datetime.datetime.fromisoformat, (self.created, now))
        return (ends - began).total_seconds()


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is to be of a revision's groups. Those that are in neither go away."""

    current: tuple[int, ...]
    """Numbers of those of the spec as it is: that are there, or are to be made."""
    kept: tuple[str, ...]
    """Names of older ones that stay for now."""


def read_groups(sets: Iterable[Object], pods: Iterable[Object]) -> dict[str, list[Group]]:
    """A service's groups by revision, in the order of their numbers."""
    by_group: defaultdict[tuple[str, str], list[Object]] = defaultdict(list)
    for pod in pods:
        by_group[_place(pod)].append(pod)
    groups: defaultdict[str, list[Group]] = defaultdict(list)
    for made in sets:
        metadata = made["metadata"]
        labels, annotations = metadata["labels"], metadata.get("annotations") or {}
        revision, index = _place(made)
        if not index.isdecimal():
            continue  # someone took its label, which comes back when it is applied again
        members = annotations.get(MEMBERS_ANNOTATION)
        groups[revision].append(
            Group(
                name=metadata["name"],
                revision=revision,
                index=int(index),
                size=int(made["spec"]["replicas"]),
                template=labels.get(TEMPLATE_LABEL, ""),
                created=metadata["creationTimestamp"],
                members=None if members is None else frozenset(members.split(",")),
                pods=by_group[revision, index],
            )
        )
    return {name: sorted(found, key=lambda group: group.index) for name, found in groups.items()}


def choose(
    groups: Sequence[Group], taken: Iterable[int], wanted: int, template: str, rollout: Rollout
) -> Choice:
    """The groups that there should be next, of `wanted` replicas made from `template`. `taken` are
    numbers whose pods are not all gone yet."""
    surge, unavailable = rollout_bounds(rollout, wanted)
    whole = [group for group in groups if not group.is_broken]
    current = _by_worth(group for group in whole if group.template == template)[:wanted]
    older = _by_worth(group for group in whole if group.template != template)
    spare = sum(group.is_ready for group in [*current, *older]) - max(0, wanted - unavailable)
    ready = [group for group in older if group.is_ready]
    kept = ready[: max(0, len(ready) - max(0, spare))]
    room = min(wanted - len(current), wanted + surge - len(current) - len(kept))
    used = {*taken, *(group.index for group in groups)}
    fresh = itertools.islice(
        (index for index in itertools.count() if index not in used), max(0, room)
    )
    numbers = sorted([*(group.index for group in current), *fresh])
    return Choice(tuple(numbers), tuple(group.name for group in kept))


def _by_worth(groups: Iterable[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: (not group.is_ready, -group.cost, group.index))


def _place(made: Object) -> tuple[str, str]:
    labels = made["metadata"]["labels"]
    return labels.get(REVISION_LABEL, ""), labels.get(GROUP_LABEL, "")


def numbers_of(pods: Iterable[Object], revision: str) -> set[int]:
    """Of the groups that a revision's pods belong to."""
    places = map(_place, pods)
    return {int(index) for found, index in places if found == revision and index.isdecimal()}
