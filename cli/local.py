"""What the commands of local mode have in common."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from pagelet.local.client import NothingRuns
from pagelet.local.control import ControlError
from pagelet.local.log_files import UnreadableLog
from pagelet.local.state_dir import StateDir, UnusableStateDir, default_state_dir
from pagelet.local.up import UpFailed

StateDirOption = Annotated[
    Path | None,
    typer.Option(
        help="Where logs are and the running supervisor is found; another one for another `up`. "
        "[default: pagelet/ in $XDG_STATE_HOME or ~/.local/state]"
    ),
]


def state_at(path: Path | None) -> StateDir:
    """The state directory that was asked for."""
    return StateDir(path or default_state_dir())


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Turns what went wrong into a line and exit code 1."""
    try:
        yield
    except (UpFailed, UnusableStateDir, UnreadableLog, NothingRuns, ControlError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
