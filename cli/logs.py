"""`pagelet logs`."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pagelet.cli.local import StateDirOption, failing, state_at
from pagelet.local.log_files import Follower, read_last
from pagelet.local.state_dir import StateDir

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A service, a replica, `router` or `supervisor`. [default: all]",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Of each log.")] = 100,
    state_dir: StateDirOption = None,
) -> None:
    """Print the logs of replicas, router and supervisor, also of those that have ended."""
    state = state_at(state_dir)

    def find() -> Sequence[Path]:
        return _matching(state, name)

    with failing():
        paths = find()
        if not paths and not follow:
            known = ", ".join(path.stem for path in state.log_paths())
            missing = (
                f"there is no log of {name}; there is {known}" if known else "there are no logs"
            )
            typer.echo(f"Error: {missing} (looked in {state.logs})", err=True)
            raise typer.Exit(1)
        with contextlib.ExitStack() as stack:
            follower = Follower(find) if follow else None
            if follower is not None:
                stack.callback(follower.close)
            for path in paths:
                for line in read_last(path, lines):
                    typer.echo(f"{path.stem} | {line}")
            if follower is not None:
                stack.enter_context(contextlib.suppress(KeyboardInterrupt))
                for path, line in follower.follow():
                    typer.echo(f"{path.stem} | {line}")


def _matching(state: StateDir, name: str | None) -> list[Path]:
    """Logs of that name, or of a service's replicas, whose names end in a number."""
    return [
        path
        for path in state.log_paths()
        if name in (None, path.stem)
        or (path.stem.rpartition("-")[0] == name and path.stem.rpartition("-")[2].isdecimal())
    ]
