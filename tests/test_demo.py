"""`make demo`, as a person would see it."""

import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

DEMO = str(Path(__file__).parent.parent / "scripts" / "demo.py")


def descendants(pid: int) -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return children


def wait_for_server(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    """The server's processes: supervisor, API server and engine core."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and demo.poll() is None:
        if len(processes := descendants(demo.pid)) >= 3:
            return processes
        time.sleep(0.02)
    raise AssertionError(f"no server: {demo.communicate()}")


def test_a_shared_prefix_meets_its_replica_and_a_kill_breaks_no_answer() -> None:
    result = subprocess.run(
        [sys.executable, DEMO, "--once"], check=False, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    figures = re.findall(
        r"(smollm2-\d): TTFT \d+ ms, [\d.]+ tokens/s, (\d+) tokens; "
        r"prompt (\d+) tokens, (\d+) of them cached",
        result.stdout,
    )
    (first, _, _, first_cached), (second, _, prompt, second_cached), (third, tokens, _, _) = figures
    assert first == second
    assert int(first_cached) == 0
    assert 64 <= int(second_cached) < int(prompt)
    assert f"[kill -9 {third}]" in result.stdout
    assert f"{third} was killed in mid-answer" in result.stdout
    assert f"the same {tokens} tokens as when asked once more, undisturbed" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_demo_ends_its_server(number: int) -> None:
    demo = subprocess.Popen(
        [sys.executable, DEMO], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with demo:
        processes = wait_for_server(demo)
        demo.send_signal(number)
        demo.communicate(timeout=60)
    _, alive = psutil.wait_procs(processes, timeout=60)
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


def test_ctrl_c_during_the_imports_ends_it_without_a_traceback() -> None:
    code = (
        "import os, runpy, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'openai':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        f"runpy.run_path({DEMO!r}, run_name='__main__')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == -signal.SIGINT
    assert result.stderr == ""


def test_only_a_gain_is_called_one() -> None:
    demo = runpy.run_path(DEMO)

    def answer(seconds: float) -> Any:
        return demo["Answer"]("text", "smollm2-1", seconds, 1.0, 100, 80, 10, 0.1)

    assert "3.0 times as fast" in demo["compare"](answer(0.3), answer(0.1))
    slower = demo["compare"](answer(0.1), answer(0.2))
    assert slower.endswith("80 of the second prompt's 100 tokens were there already.")
