"""What the command `pagelet serve` would run with."""

import pytest

from pagelet.agent.settings import ServeSettings
from pagelet.cli.main import app
from pagelet.protocol.config import EngineOptions


def serve(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> tuple[EngineOptions, ServeSettings]:
    """The configuration that the arguments of `pagelet` make."""
    got: list[tuple[EngineOptions, ServeSettings]] = []

    def run_server(options: EngineOptions, settings: ServeSettings) -> int:
        got.append((options, settings))
        return 0

    monkeypatch.setattr("pagelet.agent.supervisor.run.run_server", run_server)
    with pytest.raises(SystemExit) as exit_:
        app(arguments)
    assert exit_.value.code == 0
    [made] = got
    return made
