"""`pagelet version`"""

import importlib.metadata

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"pagelet {importlib.metadata.version('pagelet')}")
