"""Rolling updates step by step, over any order of events."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.local.rollout import Phase, ReplicaView, Step, next_step

READY, STARTING, FAILED, DRAINING = Phase.READY, Phase.STARTING, Phase.FAILED, Phase.DRAINING


def views(*replicas: tuple[bool, Phase, int]) -> list[ReplicaView]:
    return [
        ReplicaView(f"r{number}", is_current, phase, in_flight)
        for number, (is_current, phase, in_flight) in enumerate(replicas)
    ]


@pytest.mark.parametrize(
    ("replicas", "there", "expected"),
    [
        (3, [], Step(3, ())),
        (0, [(True, READY, 0), (True, STARTING, 0)], Step(0, ("r1", "r0"))),
        # Scaling down takes what serves nothing, then the least work, then the youngest.
        (1, [(True, READY, 0), (True, READY, 5), (True, FAILED, 0)], Step(0, ("r2", "r0"))),
        (1, [(True, READY, 2), (True, READY, 2)], Step(0, ("r1",))),
        (1, [(True, READY, 0), (True, STARTING, 1)], Step(0, ("r0",))),
        # An update: one more comes first, and only when it is ready one old one goes.
        (2, [(False, READY, 0), (False, READY, 0)], Step(1, ())),
        (2, [(False, READY, 0), (False, READY, 0), (True, STARTING, 0)], Step(0, ())),
        (2, [(False, READY, 4), (False, READY, 1), (True, READY, 0)], Step(1, ("r1",))),
        # Old ones that serve nothing are in the way.
        (1, [(False, FAILED, 0)], Step(1, ("r0",))),
        # A new one that cannot work leaves the old ones alone.
        (2, [(False, READY, 0), (False, READY, 0), (True, FAILED, 0)], Step(0, ())),
        # Those that drain are gone already.
        (1, [(True, DRAINING, 3)], Step(1, ())),
    ],
)
def test_steps_with_one_to_spare(
    replicas: int, there: list[tuple[bool, Phase, int]], expected: Step
) -> None:
    assert next_step(replicas, 1, 0, views(*there)) == expected


def test_without_room_for_more_one_goes_first() -> None:
    assert next_step(2, 0, 1, views((False, READY, 0), (False, READY, 0))) == Step(1, ("r1",))
    assert next_step(1, 0, 1, views((False, READY, 0))) == Step(1, ("r0",))


@dataclasses.dataclass
class Model:
    """Replicas as the supervisor would see them."""

    revision: int = 0
    replicas: dict[str, tuple[int, Phase]] = dataclasses.field(default_factory=dict)
    numbers: "itertools.count[int]" = dataclasses.field(default_factory=itertools.count)

    def step(self, wanted: int, surge: int, unavailable: int) -> None:
        seen = [
            ReplicaView(name, revision == self.revision, phase)
            for name, (revision, phase) in self.replicas.items()
        ]
        step = next_step(wanted, surge, unavailable, seen)
        for name in step.drain:
            self.replicas[name] = (self.replicas[name][0], DRAINING)
        for _ in range(step.start):
            self.replicas[f"r{next(self.numbers)}"] = (self.revision, STARTING)

    def living(self) -> int:
        return sum(phase is not DRAINING for _, phase in self.replicas.values())

    def ready(self) -> int:
        return sum(phase is READY for _, phase in self.replicas.values())


@settings(max_examples=200)
@given(st.data(), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2))
def test_an_update_keeps_enough_ready_and_comes_to_an_end(
    data: st.DataObject, wanted: int, surge: int, unavailable: int
) -> None:
    if surge == unavailable == 0:
        unavailable = 1
    model = Model()
    model.step(wanted, surge, unavailable)
    model.replicas = dict.fromkeys(model.replicas, (0, READY))
    for _ in range(data.draw(st.integers(1, 3))):  # updates, also in the middle of another
        model.revision += 1
        for _ in range(data.draw(st.integers(0, 6))):
            model.step(wanted, surge, unavailable)
            assert model.living() <= wanted + surge
            assert model.ready() >= wanted - unavailable
            event(data, model)
    for _ in range(20):  # now everything gets ready in time
        model.step(wanted, surge, unavailable)
        assert model.ready() >= wanted - unavailable
        for name, (revision, phase) in list(model.replicas.items()):
            if phase is DRAINING:
                del model.replicas[name]
            else:
                model.replicas[name] = (revision, READY)
    assert list(model.replicas.values()) == [(model.revision, READY)] * wanted


def event(data: st.DataObject, model: Model) -> None:
    """Something gets ready, or has drained."""
    waiting = [name for name, (_, phase) in model.replicas.items() if phase is not READY]
    if waiting:
        name = data.draw(st.sampled_from(waiting))
        revision, phase = model.replicas[name]
        if phase is DRAINING:
            del model.replicas[name]
        else:
            model.replicas[name] = (revision, READY)
