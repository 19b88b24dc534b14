"""The command as a person types it."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

PAGELET = str(Path(sys.executable).with_name("pagelet"))
HEAVY = ("torch", "numpy", "fastapi", "uvicorn", "tokenizers", "transformers", "zmq", "pydantic")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PAGELET, *arguments], capture_output=True, text=True, timeout=60)


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.returncode == 0
    for command in ("serve", "doctor", "bench", "version"):
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize("command", ["serve", "doctor", "bench", "version"])
def test_each_command_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0, result.stderr
    assert f"Usage: pagelet {command}" in result.stdout


@pytest.mark.parametrize("spelling", ["version", "--version"])
def test_version(spelling: str) -> None:
    assert run(spelling).stdout == f"pagelet {importlib.metadata.version('pagelet')}\n"


def test_an_unknown_command_is_refused() -> None:
    result = run("server")
    assert result.returncode == 2
    assert "No such command 'server'" in result.stderr


def test_doctor_json_is_what_the_checks_found() -> None:
    result = run("doctor", "--json")
    findings = json.loads(result.stdout)
    names = {finding["name"] for finding in findings}
    assert {"packages", "CPU", "cores", "memory", "shared memory", "open files"} <= names
    failed = any(finding["status"] == "fail" for finding in findings)
    assert result.returncode == int(failed)


@pytest.mark.parametrize(
    "module",
    ["pagelet.cli.main", "pagelet.cli.serve", "pagelet.cli.doctor", "pagelet.agent.supervisor.run"],
)
def test_the_command_and_the_supervisor_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr
