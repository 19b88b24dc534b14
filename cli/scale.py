"""`pagelet scale NAME N`."""

from typing import Annotated

import typer

from pagelet.cli.local import StateDirOption, failing, state_at
from pagelet.local import client

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def scale(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The service.")],
    replicas: Annotated[
        int, typer.Argument(metavar="N", min=0, help="Replicas; with 0 requests wait.")
    ],
    state_dir: StateDirOption = None,
) -> None:
    """Set a service's number of replicas, until the number in the file changes. Of too many, those
    with the least work in flight finish it and end. Returns when it is so."""
    state = state_at(state_dir)
    with failing():
        client.scale(state, name, replicas)
        client.wait_settled(state, typer.echo, pool=name)
