"""`pagelet ps`."""

from typing import Annotated

import msgspec
import typer

from pagelet.cli.local import StateDirOption, failing, state_at
from pagelet.local import client
from pagelet.local.screen import overview
from pagelet.process.output import output_console

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def ps(
    as_json: Annotated[bool, typer.Option("--json", help="All that is known, as JSON.")] = False,
    state_dir: StateDirOption = None,
) -> None:
    """Show the replicas that `pagelet up` runs, their state and their load."""
    with failing():
        status = client.status(state_at(state_dir))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(status), indent=2))
        return
    console = output_console()
    console.print(overview(status), soft_wrap=True)
