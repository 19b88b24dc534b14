"""`pagelet router`: options to configuration, then over to the router's supervisor."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from pagelet.cli.numbers import NumbersChecked
from pagelet.protocol.router import (
    ModelRoute,
    PolicyName,
    Pool,
    ProxyOptions,
    RouterConfig,
    RoutingOptions,
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_PROXY = ProxyOptions()


def _read_config(path: Path) -> RouterConfig:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RouterConfig)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--config") from None
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--config") from None


def _check_urls(urls: list[str]) -> None:
    from pagelet.router.upstream.client import Upstream

    for url in urls:
        try:
            Upstream(url, _PROXY.connect_timeout)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--replica") from None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@app.command(cls=NumbersChecked)
def router(
    replica: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="A replica, such as http://10.0.0.7:8000; give it again for more."
        ),
    ] = None,
    replicas_file: Annotated[
        Path | None,
        typer.Option(
            help='JSON file with a list of {"id": ..., "url": ...}, read again when it changes. '
            "[default: none]"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with all of the configuration, for several models or pools; in place "
            "of the options on replicas, routing and keys; read again when it changes. "
            "[default: none]"
        ),
    ] = None,
    # Server
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")
    ] = 8080,
    fd: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Inherited listening socket, in place of --host and --port, so that its owner can "
            "start the router again without refusing a connection. [default: none]",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1, max=256, help="Processes that answer on the port; more than cores gain nothing."
        ),
    ] = 1,
    # Routing
    policy: Annotated[
        PolicyName | None,
        typer.Option(help="How a replica is chosen. [default: prefix]"),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option(help="Name that requests may use. [default: the names that the replicas say]"),
    ] = None,
    drain_timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Most seconds that streams get to finish after SIGTERM. "
            f"[default: {_PROXY.drain_timeout:g}]",
        ),
    ] = None,
    # Keys
    api_keys_file: Annotated[
        Path | None,
        typer.Option(
            help="The tenants and their keys, read again when they change. [default: none asked]"
        ),
    ] = None,
    cache_salt_secret_file: Annotated[
        Path | None,
        typer.Option(
            help="A secret that all routers of a deployment share, so that nobody else can tell a "
            "tenant's cache salt. [default: none]"
        ),
    ] = None,
    replica_api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with the key that the replicas ask for. [default: none]"),
    ] = None,
    # Logs
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="Least severe messages to log."),
    ] = "info",
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="json: one object a line.")
    ] = "text",
) -> None:
    """Make several replicas one endpoint: requests go where their prefix is cached, and streams
    go on when a replica dies.

    Replicas are Pagelet's servers, or any other's with an OpenAI API. SIGTERM or Ctrl-C lets
    streams finish; a second one stops at once.
    """
    given = {
        "--replica": replica,
        "--replicas-file": replicas_file,
        "--policy": policy,
        "--model-name": model_name,
        "--drain-timeout": drain_timeout,
        "--api-keys-file": api_keys_file,
        "--cache-salt-secret-file": cache_salt_secret_file,
        "--replica-api-key-file": replica_api_key_file,
    }
    if config is not None:
        if clash := [name for name, value in given.items() if value is not None]:
            raise typer.BadParameter(
                f"the file says it all; leave out {', '.join(clash)}, or --config",
                param_hint="--config",
            )
        router_config = _read_config(config)
    else:
        if not replica and replicas_file is None:
            raise typer.BadParameter("give --replica URL, --replicas-file or --config")
        _check_urls(replica or [])
        pool = Pool(replicas=replica or [], replicas_file=_text(replicas_file))
        router_config = RouterConfig(
            models=[ModelRoute(name=model_name, pools=[pool])],
            routing=RoutingOptions(policy=policy or "prefix"),
            proxy=_PROXY if drain_timeout is None else ProxyOptions(drain_timeout=drain_timeout),
            api_keys_file=_text(api_keys_file),
            cache_salt_secret_file=_text(cache_salt_secret_file),
            replica_api_key_file=_text(replica_api_key_file),
        )
    from pagelet.router.launch import RouterSettings
    from pagelet.router.supervisor import run_router

    settings = RouterSettings(
        host=host,
        port=port,
        fd=fd,
        workers=workers,
        config_file=_text(config),
        log_level=log_level,
        log_format=log_format,
    )
    raise typer.Exit(run_router(router_config, settings))
