"""A server process that cannot be started, or ends, is started again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagelet.local import server as module
from pagelet.local.log_files import RotatingLog
from pagelet.local.rollout import Phase
from pagelet.local.server import Server
from support.idle_process import IdleProcess


def make_server(folder: Path, on_change: Callable[[], None] = lambda: None) -> Server:
    return Server(
        "router",
        [],
        1,
        RotatingLog(folder / "router.log"),
        environment={},
        startup_seconds=60,
        drain_seconds=1,
        on_change=on_change,
    )


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
    server = make_server(tmp_path, lambda: phases.append((server.phase, server.reason)))
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


async def test_one_that_falls_silent_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[tuple[int, str] | None] = [None, (200, ""), None, None, (200, ""), None]
    lives: list[IdleProcess] = []
    lives_again = asyncio.Event()

    class SlowSilence:
        seconds = 0.0

        def look(self, heard: bool, now: float) -> float:
            self.seconds = 0.0 if heard else self.seconds + 25
            return self.seconds

    async def start(*_: Any) -> IdleProcess:
        lives.append(IdleProcess())
        if len(lives) == 2:
            lives_again.set()
        return lives[-1]

    async def get(*_: Any) -> tuple[int, str] | None:
        return answers.pop(0) if answers else None

    monkeypatch.setattr(module.Command, "start", start)
    monkeypatch.setattr(module.probe, "get", get)
    monkeypatch.setattr(module, "_STARTING_POLL_SECONDS", 0.0)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(module, "Silence", SlowSilence)
    server = make_server(tmp_path)
    server.begin()
    async with asyncio.timeout(60):
        await lives_again.wait()
        assert lives[0].ends.is_set()
        assert not answers, "a silence that ends is none"
        server.kill()
        await server.ended.wait()
    assert server.restarts == 1
