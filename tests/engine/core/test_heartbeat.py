"""The heartbeat file: whole readings only, across restarts and kills of the writer."""

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagelet.engine.core.heartbeat import CoreState, HeartbeatReader, HeartbeatWriter


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "core.heartbeat")


def test_there_is_no_beat_before_the_first(path: str) -> None:
    assert HeartbeatReader(path).read() is None


def test_only_a_core_with_work_has_a_step_of_some_age(path: str) -> None:
    reader, writer = HeartbeatReader(path), HeartbeatWriter(path)

    def age(*, step_began: float, num_unfinished: int, after: float) -> float:
        writer.beat(step=1, step_began=step_began, num_unfinished=num_unfinished)
        beat = reader.read()
        assert beat is not None
        return beat.step_age((step_began or beat.last_loop) + after)

    assert age(step_began=5.0, num_unfinished=2, after=7.5) == 7.5
    assert age(step_began=0.0, num_unfinished=2, after=3.0) == pytest.approx(3.0)
    assert age(step_began=0.0, num_unfinished=0, after=3.0) == 0.0


def test_a_beat_comes_back_as_it_was_written(path: str) -> None:
    reader, writer = HeartbeatReader(path), HeartbeatWriter(path)
    writer.stage("loading weights 45%")
    beat = reader.read()
    assert beat is not None
    assert (beat.state, beat.stage, beat.kv_cache_tokens) == (
        CoreState.STARTING,
        "loading weights 45%",
        0,
    )
    writer.ready(kv_cache_tokens=4096)
    before = time.monotonic()
    writer.beat(step=7, step_began=1.5, num_unfinished=3)
    beat = reader.read()
    assert beat is not None
    assert (beat.pid, beat.state, beat.step, beat.step_began) == (
        os.getpid(),
        CoreState.READY,
        7,
        1.5,
    )
    assert (beat.num_unfinished, beat.kv_cache_tokens, beat.stage) == (3, 4096, "ready")
    assert before <= beat.last_loop <= time.monotonic()
    assert beat.has_work


@pytest.mark.parametrize("text", ["x" * 400, "é" * 400])
def test_a_long_stage_is_cut_at_a_character(path: str, text: str) -> None:
    reader, writer = HeartbeatReader(path), HeartbeatWriter(path)
    writer.stage(text)
    beat = reader.read()
    assert beat is not None
    assert beat.stage
    assert text.startswith(beat.stage)


def test_a_writer_killed_while_writing_leaves_the_last_whole_beat(path: str) -> None:
    reader, writer = HeartbeatReader(path), HeartbeatWriter(path)
    writer.beat(step=5, step_began=0.0, num_unfinished=0)
    whole = reader.read()
    with open(path, "r+b") as file:  # as if killed: odd sequence number, half of a body
        (sequence,) = struct.unpack("<Q", file.read(8))
        file.seek(0)
        file.write(struct.pack("<Q", sequence + 1) + b"\xff" * 20)
    assert reader.read() == whole
    successor = HeartbeatWriter(path)
    successor.beat(step=1, step_began=0.0, num_unfinished=0)
    beat = reader.read()
    assert beat is not None
    assert beat.step == 1


def test_readings_are_never_torn(path: str) -> None:
    """Another process writes beats whose fields all agree, as fast as it can."""
    code = f"""
from pagelet.engine.core.heartbeat import HeartbeatWriter
writer = HeartbeatWriter({path!r})
step = 0
while True:
    step += 1
    writer.beat(step=step, step_began=float(step), num_unfinished=step)
"""
    writer = subprocess.Popen([sys.executable, "-c", code])
    try:
        reader, seen = HeartbeatReader(path), set()
        deadline = time.monotonic() + 60
        while len(seen) < 100 and time.monotonic() < deadline:
            beat = reader.read()
            if beat is not None:
                assert beat.step == beat.step_began == beat.num_unfinished
                seen.add(beat.step)
        assert len(seen) == 100
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
