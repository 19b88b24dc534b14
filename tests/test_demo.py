"""`make demo`, as a person would see it."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

DEMO = str(Path(__file__).parent.parent / "scripts" / "demo.py")


def descendants(pid: int) -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return children


def wait_for_server(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    """The server's processes: supervisor, API server and engine core."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and demo.poll() is None:
        if len(processes := descendants(demo.pid)) >= 3:
            return processes
        time.sleep(0.02)
    raise AssertionError(f"no server: {demo.communicate()}")


def test_two_answers_are_streamed_and_the_second_finds_its_prefix() -> None:
    result = subprocess.run(
        [sys.executable, DEMO, "--once"], check=False, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    figures = re.findall(
        r"TTFT \d+ ms, [\d.]+ tokens/s, (\d+) tokens; prompt (\d+) tokens, (\d+) of them cached",
        result.stdout,
    )
    (_, _, first_cached), (_, prompt, second_cached) = figures
    assert int(first_cached) == 0
    assert 64 <= int(second_cached) < int(prompt)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_demo_ends_its_server(number: int) -> None:
    demo = subprocess.Popen(
        [sys.executable, DEMO], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with demo:
        processes = wait_for_server(demo)
        demo.send_signal(number)
        demo.communicate(timeout=60)
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert demo.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 0)


def test_a_server_that_cannot_start_is_told_with_its_own_words(tmp_path: Path) -> None:
    code = (
        f"import runpy, sys; sys.argv = ['demo', '--once']\n"
        f"import pagelet.bench.server as server\n"
        f"server.PAGELET = {str(tmp_path / 'pagelet')!r}\n"
        f"runpy.run_path({DEMO!r}, run_name='__main__')\n"
    )
    script = tmp_path / "pagelet"
    script.write_text("#!/bin/sh\necho 'no room for the KV cache' >&2\nexit 78\n")
    script.chmod(0o755)
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert "exit code 78" in result.stderr
    assert "no room for the KV cache" in result.stderr
