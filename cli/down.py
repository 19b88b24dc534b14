"""`pagelet down`."""

from typing import Annotated

import typer

from pagelet.cli.local import StateDirOption, failing, state_at
from pagelet.local import client

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def down(
    now: Annotated[
        bool, typer.Option("--now", help="Stop at once: what runs ends with an error.")
    ] = False,
    state_dir: StateDirOption = None,
) -> None:
    """End what `pagelet up` runs: running requests finish first. Returns when all has ended."""
    with failing():
        try:
            client.stop(state_at(state_dir), at_once=now)
        except client.NothingRuns:
            typer.echo("nothing runs")
