"""`pagelet scale NAME N`."""

import time
from typing import Annotated

import typer

from pagelet.cli.local import StateDirOption, failing, state_at
from pagelet.local import client

_POLL_SECONDS = 0.2

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def scale(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The service.")],
    replicas: Annotated[
        int, typer.Argument(metavar="N", min=0, help="Replicas; with 0 requests wait.")
    ],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until replicas that are too many have ended.")
    ] = False,
    state_dir: StateDirOption = None,
) -> None:
    """Set a service's number of replicas, until the number in the file changes. Of too many, those
    with the least work in flight finish it and end. Returns when those that stay are ready."""
    state = state_at(state_dir)
    with failing():
        for warning in client.scale(state, name, replicas).warnings:
            typer.echo(f"Warning: {warning}", err=True)
        client.wait_settled(state, typer.echo, pool=name)
        draining = client.draining(state, name)
        while wait and draining:
            time.sleep(_POLL_SECONDS)
            draining = client.draining(state, name)
        for replica in draining:
            count = replica.load.in_flight
            typer.echo(f"{replica.id}: draining, {count} in flight; --wait waits for its end")
