"""A replica's own words about its start, and about what keeps it from serving."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagelet.local import server as module
from pagelet.local.log_files import RotatingLog
from pagelet.local.replica import _STAGE, Replica, _last
from pagelet.local.rollout import Phase
from pagelet.local.wanted import read_wanted
from pagelet.process.listener import reserve
from pagelet.protocol.openai.errors import ErrorDetail, ErrorResponse
from support.idle_process import IdleProcess
from support.services import SERVICE


@pytest.mark.parametrize(
    ("lines", "stage"),
    [
        ([], ""),
        (["T INFO [supervisor] API server: starting", "a traceback: engine core 0: no"], ""),
        (
            [
                "T INFO [supervisor] engine core 0: starting",
                "T INFO [supervisor] engine core 0: compiling the CPU kernels (first start only)",
                "T INFO [supervisor] API server: starting",
            ],
            "compiling the CPU kernels (first start only)",
        ),
        (["T INFO [supervisor] engine core 0: loading weights 45%"], "loading weights"),
    ],
)
def test_the_last_stage_counts(lines: list[str], stage: str) -> None:
    assert _last(_STAGE, lines) == stage


@pytest.fixture
def output(tmp_path: Path) -> Iterator[RotatingLog]:
    log = RotatingLog(tmp_path / "sim-1.log")
    yield log
    log.close()


async def test_while_its_engine_is_gone_it_says_why(
    tmp_path: Path,
    output: RotatingLog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(SERVICE.format(name="sim"))
    ready, gone = (200, "{}"), (503, ErrorResponse(_detail("not connected")).encode().decode())
    death = "engine core 0 ended with signal SIGKILL; starting it again in 0.5 s"
    answers = {
        "starts": (gone, ""),
        "ready": (ready, "T INFO [supervisor] engine core 0: ready"),
        "gone, for reasons unknown": (gone, ""),
        "killed": (gone, f"T ERROR [supervisor] {death}"),
        "still gone": (gone, "T INFO [engine core 0] loads"),
        "ready again": (ready, ""),
        "gone once more": ((503, "no JSON"), ""),
        "so still": (gone, ""),
    }
    told: dict[str, tuple[Phase, str, str]] = {}
    moments = iter(answers)
    now = ""

    async def get(*_: object) -> tuple[int, str]:
        nonlocal now
        if now:
            status = replica.status("")
            told[now] = (status.phase, status.reason, status.stage)
        now = next(moments, "")
        if not now:
            replica.drain()
            return ready
        answer, line = answers[now]
        output.write(line.encode() + b"\n")
        return answer

    async def start(*_: object) -> IdleProcess:
        return IdleProcess()

    async def look() -> None:
        pass

    monkeypatch.setattr(module.Command, "start", start)
    monkeypatch.setattr(module.probe, "get", get)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    with reserve("127.0.0.1", 0) as holder:
        replica = Replica(
            "sim-1",
            read_wanted(file, 0).pools["sim"],
            holder,
            output,
            share=1.0,
            gpus=[],
            kv_events=("ipc://events", "ipc://replay"),
            api_key_file=None,
            chat_template=None,
            on_change=lambda: None,
        )
        monkeypatch.setattr(replica, "look", look)
        replica.begin()
        async with asyncio.timeout(60):
            await replica.ended.wait()
    logged = [message for message in caplog.messages if "not ready" in message]
    assert logged == [
        "sim-1: not ready any more: not connected",
        "sim-1: not ready any more: it does not say why",
    ]
    assert told == {
        "starts": (Phase.STARTING, "", ""),
        "ready": (Phase.READY, "", ""),
        "gone, for reasons unknown": (Phase.STARTING, "not connected", ""),
        "killed": (Phase.STARTING, death, ""),
        "still gone": (Phase.STARTING, death, ""),
        "ready again": (Phase.READY, "", ""),
        "gone once more": (Phase.STARTING, "", ""),
        "so still": (Phase.STARTING, "not connected", ""),
    }


def _detail(message: str) -> ErrorDetail:
    return ErrorDetail(message=message, type="server_error")
