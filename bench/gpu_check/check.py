"""What a check of a GPU found, and parts of checks, each in a process of its own.

A kernel that writes where it must not leaves its process without a GPU, and one that hangs never
ends: neither may take the other parts with it, nor what they have found.
"""

import dataclasses
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Literal

from pagelet.process.proc import describe_exit, kill_group

Status = Literal["passed", "failed", "not run"]

LOST_DEVICE = 3
"""The exit code of a part whose last check, which was told, has left it without a GPU."""
_MOST_RESTARTS = 5


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    words: str
    """What was seen, in one line."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A program that prints its checks, a JSON object a line."""

    name: str
    command: Sequence[str]
    seconds: float
    """After which it is stopped."""
    silence: float | None = None
    """Seconds without a check after which it is stopped; None if only `seconds` count."""
    restarts: bool = False
    """Whether the program, given a number more, leaves out so many of its checks: then it goes on
    after one that has ended it."""


def run_parts(parts: Sequence[Part], seconds: float) -> Iterator[tuple[int, Check]]:
    """Runs one part after another, and yields each one's number with what it finds, as it comes.
    None runs when so many seconds have passed."""
    end = time.monotonic() + seconds
    for number, part in enumerate(parts):
        left = end - time.monotonic()
        if left <= 0:
            yield number, Check(part.name, "not run", f"{seconds:.0f} s were over")
            continue
        for check in run_part(part, min(part.seconds, left)):
            yield number, check


def run_part(part: Part, seconds: float) -> Iterator[Check]:
    """What a part finds in so many seconds. Its end in any other way than it should is a failure
    of what it was at."""
    end = time.monotonic() + seconds
    told, last = 0, ""
    for _ in range(1 + (_MOST_RESTARTS if part.restarts else 0)):
        before = told
        with tempfile.TemporaryFile() as errors:
            command = [*part.command, *([str(told)] if part.restarts else [])]
            fault = None
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            ) as process:
                try:
                    for line in _lines(process, end, part.silence):
                        check = Check(**json.loads(line))
                        told, last = told + 1, check.name
                        yield check
                    code = _wait(process, end, part.silence)
                    fault = None if code == 0 else describe_exit(code)
                except TimeoutError as error:
                    fault = str(error)
                finally:
                    kill_group(process.pid)
            if fault is None:
                return
            if process.returncode == LOST_DEVICE and told > before:
                continue
            after = f"after {last!r}" if last else "at its start"
            yield Check(part.name, "failed", f"{fault} {after}: {_end_of(errors)}".rstrip(": "))
            told += 1
        if time.monotonic() > end:
            return


def _lines(
    process: "subprocess.Popen[bytes]", end: float, silence: float | None
) -> Iterator[bytes]:
    """Whole lines of its output. Raises TimeoutError."""
    assert process.stdout is not None
    began = heard = time.monotonic()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            until = end if silence is None else min(end, heard + silence)
            if not selector.select(max(0.0, until - time.monotonic())):
                stopped = time.monotonic() - began
                raise TimeoutError(f"stopped, as it was not done in {stopped:.0f} s,")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return
            heard = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def _wait(process: "subprocess.Popen[bytes]", end: float, silence: float | None) -> int:
    """The exit code of one that has told all: what it frees in the end may hang, too. Raises
    TimeoutError."""
    left = max(0.0, end - time.monotonic())
    try:
        return process.wait(left if silence is None else min(left, silence))
    except subprocess.TimeoutExpired:
        raise TimeoutError("stopped, as its process did not end") from None


def _end_of(errors: IO[bytes]) -> str:
    """Its last words, in one line."""
    errors.seek(0)
    return " ".join(errors.read().decode(errors="replace").split())[-300:]
