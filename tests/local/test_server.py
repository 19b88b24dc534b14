"""A server process that cannot be started, or ends, is started again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pagelet.local import server as module
from pagelet.local.log_files import RotatingLog
from pagelet.local.rollout import Phase
from pagelet.local.server import Server
from support.idle_process import IdleProcess


async def test_one_for_which_nothing_is_left_is_started_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[tuple[Phase, str]] = []
    runs = asyncio.Event()
    failures = [OSError(11, "Resource temporarily unavailable")] * 2

    async def start(*_: Any) -> IdleProcess:
        if failures:
            raise failures.pop()
        runs.set()
        return IdleProcess()

    monkeypatch.setattr(module.Command, "start", start)
    server = Server(
        "router",
        [],
        1,
        RotatingLog(tmp_path / "router.log"),
        environment={},
        startup_seconds=60,
        drain_seconds=1,
        on_change=lambda: phases.append((server.phase, server.reason)),
    )
    server.begin()
    async with asyncio.timeout(60):
        await runs.wait()
        server.drain()
        await server.ended.wait()
    why = [
        "cannot be started: Resource temporarily unavailable; "
        f"starting it again in {seconds} s (failure {number} in a row)"
        for seconds, number in (("0.5", 1), ("1", 2))
    ]
    assert phases == [
        *[(phase, why[0]) for phase in (Phase.BACKING_OFF, Phase.STARTING)],
        *[(phase, why[1]) for phase in (Phase.BACKING_OFF, Phase.STARTING)],
        (Phase.DRAINING, why[1]),
        (Phase.STOPPED, why[1]),
    ]
    assert server.restarts == 2
