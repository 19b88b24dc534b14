"""`pagelet up -f FILE`."""

from pathlib import Path
from typing import Annotated

import typer

from pagelet.cli.local import StateDirOption, failing
from pagelet.local.up import UpOptions
from pagelet.local.up import up as run
from pagelet.process.output import output_console

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def up(
    file: Annotated[
        Path, typer.Option("--file", "-f", help="YAML file with one or several InferenceServices.")
    ],
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on; 0.0.0.0 for all. [default: 127.0.0.1]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="TCP port of the router; 0 takes a free one. [default: 8000]"
        ),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]N",
            help="Replicas in place of the file's number; give it again for more services.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run in the background; return when ready.")
    ] = False,
    state_dir: StateDirOption = None,
) -> None:
    """Run InferenceServices on this machine: replicas, and one router in front of them.

    Changes of the file are taken over while it runs: new replicas get ready, then the old ones
    drain. Where the same file runs already, it is read again and the command returns when all is
    as it says. The first Ctrl-C drains, the second stops at once.
    """
    from pagelet.local.state_dir import default_state_dir

    options = UpOptions(file, host, port, state_dir or default_state_dir(), replicas or [])
    with failing():
        raise typer.Exit(run(options, output_console(), detach=detach))
