"""What people see of it, on terminals and elsewhere."""

import io
import logging
import re

import pytest
from rich.console import Console

from pagelet.local.probe import Load
from pagelet.local.rollout import Phase
from pagelet.local.screen import Lines, Screen, overview
from pagelet.local.status import PoolStatus, ReplicaStatus, ServerStatus, Status

LOAD = Load(
    in_flight=3,
    running=2,
    waiting=1,
    kv_cache_usage=0.125,
    prefix_hit_rate=0.5,
    tokens_per_second=1234.4,
)


def replica(number: int, phase: Phase, *, current: bool = True, reason: str = "") -> ReplicaStatus:
    return ReplicaStatus(
        id=f"smollm2-{number}",
        phase=phase,
        pid=123456,
        port=40000 + number,
        restarts=number,
        reason=reason,
        is_current=current,
        load=LOAD,
    )


def status(*replicas: ReplicaStatus, wanted: int = 2, problems: tuple[str, ...] = ()) -> Status:
    router = ServerStatus(id="router", phase=Phase.READY, pid=1, port=8000, restarts=0)
    pool = PoolStatus(name="smollm2", model="smollm2", wanted=wanted, replicas=list(replicas))
    return Status(
        file="a.yaml",
        url="http://127.0.0.1:8000",
        problems=list(problems),
        router=router,
        pools=[pool],
    )


def text_of(shown: Status, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(overview(shown))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    shown = status(
        replica(1, Phase.READY, current=False),
        replica(2, Phase.BACKING_OFF, reason="out of memory"),
        problems=("a.yaml:3: spec.replicas: is 'x'",),
    )
    lines = text_of(shown).splitlines()
    assert "…" not in "".join(lines)
    assert " ".join(lines[2].split()) == (
        "smollm2 1/2 smollm2-1 ready, old 123456 40001 3 2+1 12% 50% 1,234 1"
    )
    assert lines[3].split()[:2] == ["smollm2-2", "backoff"]
    assert [line.rstrip() for line in lines[4:]] == [
        "a.yaml:3: spec.replicas: is 'x'",
        "nothing is changed until the file is right",
        "smollm2-2: out of memory",
    ]
    assert "none" in text_of(status(wanted=0))


def test_a_narrow_terminal_folds_names_and_cuts_nothing() -> None:
    text = text_of(status(replica(1, Phase.READY), replica(2, Phase.READY)), width=66)
    assert "…" not in text
    for cell in ("123456", "40001", "ready", "12%", "1,234", "restarts"):
        assert cell in text


def test_a_reason_is_shown_until_it_is_ready_again() -> None:
    why = "ended with signal SIGKILL"
    shown = {
        phase: f"smollm2-2: {why}" in text_of(status(replica(2, phase, reason=why)))
        for phase in Phase
    }
    assert {phase for phase in Phase if shown[phase]} == {
        Phase.STARTING,
        Phase.BACKING_OFF,
        Phase.FAILED,
    }
    assert "smollm2-2:" not in text_of(status(replica(2, Phase.STARTING)))


@pytest.mark.parametrize(
    ("replicas", "settled"),
    [
        ([replica(1, Phase.READY), replica(2, Phase.READY)], True),
        ([replica(1, Phase.READY), replica(2, Phase.READY), replica(3, Phase.DRAINING)], True),
        ([replica(1, Phase.READY), replica(2, Phase.STARTING)], False),
        ([replica(1, Phase.READY, current=False), replica(2, Phase.READY)], False),
        ([replica(1, Phase.READY)], False),
    ],
)
def test_settled_means_that_all_is_as_wanted(replicas: list[ReplicaStatus], settled: bool) -> None:
    assert status(*replicas).is_settled == settled


def test_a_pipe_gets_a_line_an_event_and_one_when_all_is_ready() -> None:
    console = Console(file=io.StringIO(), width=40)
    ready = status(replica(1, Phase.READY), replica(2, Phase.READY))
    with Lines(console) as view:
        view.emit(logging.makeLogRecord({"msg": "a line of %d", "args": (80,)}))
        for shown in (status(), ready, ready, status(), ready):
            view.show(shown)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.sub(r"\d\d:\d\d:\d\d", "TIME", printed).splitlines() == [
        "TIME a line of 80",
        "TIME all is ready at http://127.0.0.1:8000/v1",
        "TIME all is ready at http://127.0.0.1:8000/v1",
    ]


def test_a_terminal_keeps_the_table_and_the_last_events() -> None:
    console = Console(file=io.StringIO(), width=100, height=40, force_terminal=True)
    with Screen(console) as view:
        for number in range(10):
            view.emit(logging.makeLogRecord({"msg": f"event {number}"}))
        console.file.truncate(0)
        view.show(status(replica(1, Phase.READY)))
        printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Ctrl-C drains" in printed
    assert "smollm2-1" in printed
    assert [int(number) for number in re.findall(r"event (\d)", printed)] == list(range(4, 10))
