"""`pagelet keys`: API keys of a router's tenants."""

import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from pagelet.process.output import output_console
from pagelet.router.tenants.key_edit import KeyStore
from pagelet.router.tenants.key_file import KeyFileError

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Make, list and revoke API keys of a router's tenants.",
)

_MOST_DAYS = 36_500

FileOption = Annotated[
    Path,
    typer.Option(
        "--file",
        help="The tenants, as YAML or JSON, or a folder with a file for each; what `pagelet router "
        "--api-keys-file` reads.",
    ),
]
ExistingFileOption = Annotated[
    Path,
    typer.Option(
        "--file",
        exists=True,
        help="The tenants, as YAML or JSON, or a folder with a file for each.",
    ),
]


def _open(path: Path) -> KeyStore:
    try:
        return KeyStore(path)
    except KeyFileError as error:
        raise _failure(error) from None


def _failure(error: KeyFileError) -> typer.Exit:
    typer.echo(f"Error: {error}", err=True)
    return typer.Exit(1)


@app.command()
def new(
    tenant: Annotated[
        str, typer.Argument(metavar="TENANT", help="Whose key it is; added if it is not there.")
    ],
    file: FileOption,
    note: Annotated[str, typer.Option(help="For people: who uses it, and where.")] = "",
    days: Annotated[
        float | None,
        typer.Option(min=0, max=_MOST_DAYS, help="It expires after so many days. [default: never]"),
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="The tenant may see others' requests explained.")
    ] = False,
) -> None:
    """Print a new key, once. Its hash goes to the file, and no one can get the key from that."""
    expires = None
    if days is not None:
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        expires = now + datetime.timedelta(days=days)
    store = _open(file)
    try:
        key = store.add(tenant, note=note, expires=expires, admin=admin)
    except KeyFileError as error:
        raise _failure(error) from None
    typer.echo(key)


@app.command("list")
def list_keys(file: ExistingFileOption) -> None:
    """Show tenants and the ids of their keys."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("tenant", "key", "created", "expires", "note"):
        table.add_column(name, no_wrap=name != "note")
    now = datetime.datetime.now(datetime.UTC)
    for tenant in _open(file).tenants:
        for key in tenant.keys:
            expired = key.expires is not None and key.expires <= now
            table.add_row(
                tenant.name + (" (admin)" if tenant.admin else ""),
                key.id,
                _day(key.created),
                Text(_day(key.expires) or "never", "red" if expired else ""),
                Text(key.note),
            )
    output_console().print(table)


@app.command()
def revoke(
    key_id: Annotated[
        str,
        typer.Argument(metavar="KEY_ID", help="As `pagelet keys list` shows it, or its start."),
    ],
    file: ExistingFileOption,
) -> None:
    """Take a key back. Routers heed it within a second or two of seeing the file change."""
    store = _open(file)
    try:
        tenant = store.revoke(key_id)
    except KeyFileError as error:
        raise _failure(error) from None
    typer.echo(f"revoked a key of {tenant}")


def _day(moment: datetime.datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d}"
