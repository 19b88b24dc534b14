"""The command `pagelet`. Each subcommand's module is imported only when it runs, so that
`pagelet --help` and the supervisor start at once."""

import importlib
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup


class _Command(NamedTuple):
    module: str
    """Has a `typer.Typer` named `app`."""
    help: str


_COMMANDS = {
    "serve": _Command("pagelet.cli.serve", "Serve a model over the OpenAI API."),
    "up": _Command("pagelet.cli.up", "Run services from a YAML file on this machine."),
    "down": _Command("pagelet.cli.down", "End what `pagelet up` runs."),
    "ps": _Command("pagelet.cli.ps", "Show what `pagelet up` runs."),
    "logs": _Command("pagelet.cli.logs", "Print the logs of what `pagelet up` runs."),
    "scale": _Command("pagelet.cli.scale", "Set the number of replicas of a service."),
    "router": _Command("pagelet.cli.router", "Make several servers one endpoint."),
    "keys": _Command("pagelet.cli.keys", "Make and revoke API keys of a router's tenants."),
    "explain": _Command("pagelet.cli.explain", "Show how a router treated a request."),
    "fetch": _Command("pagelet.cli.fetch", "Download a model, and check every file of it."),
    "operator": _Command("pagelet.cli.operator", "Make services run in a Kubernetes cluster."),
    "doctor": _Command("pagelet.cli.doctor", "Say what this machine has, and what does not fit."),
    "bench": _Command("pagelet.bench.cli", "Measure the engine and the server."),
    "version": _Command("pagelet.cli.version", "Print the version."),
}


class LazyCommands(TyperGroup):
    """A group that knows its commands' names and help before it imports any of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name].module)
        return typer.main.get_command(module.app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in _COMMANDS.items()])


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pagelet.cli.version import version

        version()
        raise typer.Exit


@app.callback()
def pagelet(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Serve large language models: a paged-KV, continuous-batching engine with an OpenAI API."""


def main() -> None:
    """Entry point."""
    app()
