"""Events tell of changes, and warn of what someone has to do something about."""

from typing import Any

import pytest

from pagelet.operator.kube.client import ApiError
from pagelet.operator.kube.resources import Object
from pagelet.operator.recorder import Recorder
from pagelet.protocol.inference_service.status import Condition

SERVICE = {"metadata": {"name": "a", "namespace": "n", "uid": "u"}}


class Events:
    """Takes events, or refuses them."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.made: list[Object] = []
        self.refuses = refuses

    async def create(self, resource: object, namespace: str, made: Object) -> None:
        if self.refuses:
            raise ApiError(403, "Forbidden", "no events here")
        self.made.append(made)


def condition(kind: Any, status: Any, reason: str) -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message="words",
        last_transition_time="2026-01-01T00:00:00Z",
        observed_generation=1,
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, condition("Ready", "False", "Loading"), []),
        (None, condition("Degraded", "False", "AsExpected"), []),
        (None, condition("Valid", "True", "Accepted"), [("Normal", "Accepted")]),
        (None, condition("Valid", "False", "Refused"), [("Warning", "Refused")]),
        (
            condition("Ready", "False", "Loading"),
            condition("Ready", "False", "RouterStarting"),
            [("Normal", "RouterStarting")],
        ),
        (
            condition("Ready", "False", "Loading"),
            condition("Ready", "True", "Serving"),
            [("Normal", "Serving")],
        ),
        (
            condition("Ready", "True", "Serving"),
            condition("Ready", "False", "Crashing"),
            [("Warning", "Crashing")],
        ),
        (
            condition("Degraded", "False", "AsExpected"),
            condition("Degraded", "True", "OutOfMemory"),
            [("Warning", "OutOfMemory")],
        ),
        (condition("Valid", "True", "Accepted"), condition("Valid", "True", "Accepted"), []),
    ],
)
async def test_changes_are_told(
    before: Condition | None, after: Condition, expected: list[tuple[str, str]]
) -> None:
    events = Events()
    recorder = Recorder(events)  # type: ignore[arg-type]
    await recorder.tell_changes(SERVICE, [before] if before else [], [after])
    assert [(event["type"], event["reason"]) for event in events.made] == expected
    for event in events.made:
        assert event["involvedObject"]["uid"] == "u"
        assert event["message"] == f"{after.type}: words"


async def test_an_event_that_is_refused_holds_up_nothing() -> None:
    recorder = Recorder(Events(refuses=True))  # type: ignore[arg-type]
    await recorder.tell_changes(SERVICE, [], [condition("Valid", "True", "Accepted")])
