"""`pagelet doctor`: what this machine has, what fits and what does not."""

import sys
from typing import Annotated

import msgspec
import typer

from pagelet.agent.doctor.checks import Finding
from pagelet.agent.doctor.everything import check_everything

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "absent": "bright_black"}


@app.command()
def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model that is checked, as for serve."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address whose port is checked.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port that is checked.")] = 8000,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine has, what fits and what does not, before anything starts.

    Exit code 1 says that serving will not work. A machine without a GPU is fine.
    """
    findings = check_everything(model, host, port)
    if json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(findings)) + b"\n")
    else:
        for finding in findings:
            _print(finding)
    raise typer.Exit(any(finding.status == "fail" for finding in findings))


def _print(finding: Finding) -> None:
    status = typer.style(f"{finding.status:>6}", fg=_COLOURS[finding.status])
    typer.echo(f"{status}  {finding.name}: {finding.summary}")
    if finding.advice:
        typer.echo(f"        {finding.advice}")
