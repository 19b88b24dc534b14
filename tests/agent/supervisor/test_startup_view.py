"""What is seen of a start: on a terminal, and in a log."""

import contextlib
import logging
import os
import pty
import re
import threading

import pytest

from pagelet.agent.supervisor.startup_view import StartupView

STAGES = [
    [("engine core 0", "starting"), ("API server", "starting")],
    [("engine core 0", "loading weights 40%"), ("API server", "starting")],
    [("engine core 0", "loading weights 80%"), ("API server", "ready")],
    [("engine core 0", "ready"), ("API server", "ready")],
]
SERVING = r"Serving tiny at http://127\.0\.0\.1:1/v1 \(KV cache: {}; ready in \d+\.\d s\)"


def test_a_log_has_each_stage_once(caplog: pytest.LogCaptureFixture) -> None:
    with open(os.devnull, "w") as stream, caplog.at_level(logging.INFO):
        view = StartupView("http://127.0.0.1:1/v1", stream)
        for stages in STAGES:
            view.show(stages)
        view.announce("tiny", [4096])
        view.close()
    *lines, last = caplog.messages
    assert lines == [
        "engine core 0: starting",
        "API server: starting",
        "engine core 0: loading weights",
        "API server: ready",
        "engine core 0: ready",
    ]
    assert re.fullmatch(SERVING.format("4,096 tokens"), last)


def test_a_terminal_has_bars_and_then_one_line() -> None:
    controller, terminal = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            while True:
                chunks.append(os.read(controller, 4096))

    reader = threading.Thread(target=read)
    reader.start()
    with open(terminal, "w") as stream:
        view = StartupView("http://127.0.0.1:1/v1", stream)
        for stages in STAGES:
            view.show(stages)
        view.announce("tiny", [4096, 4096])
        view.close()
    reader.join()
    os.close(controller)
    shown = b"".join(chunks).decode()
    assert "engine core 0" in shown
    assert "\x1b[?25l" in shown  # the cursor is hidden while bars move,
    assert "\x1b[?25h" in shown  # and comes back
    assert re.search(SERVING.format("2 x 4,096 tokens"), shown)
