"""`pagelet operator`: makes InferenceServices in a Kubernetes cluster run."""

import os
import socket
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"


def _parse_labels(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(key and equals for key, equals, _ in pairs):
        raise typer.BadParameter(f"{text!r}: write NAME=VALUE[,NAME=VALUE...]")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _parse_budget(entries: list[str]) -> dict[str, int]:
    budget = {}
    for text in entries:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal():
            raise typer.BadParameter(f"{text!r}: write RESOURCE=NUMBER, as nvidia.com/gpu=16")
        budget[name] = int(number)
    return budget


@app.command()
def operator(
    agent_image: Annotated[str, typer.Option(help="Image of replicas that name none.")],
    router_image: Annotated[str, typer.Option(help="Image of routers that name none.")],
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="Namespace to serve; give it again for more. [default: all]"),
    ] = None,
    own_namespace: Annotated[
        str | None,
        typer.Option(
            envvar="POD_NAMESPACE", help="Where the operator runs. [default: as its pod says]"
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            help="Where the Lease is by which operators agree on who acts. [default: where the "
            "operator runs]"
        ),
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option(envvar="POD_NAME", help="Name in the Lease. [default: of this process]"),
    ] = None,
    monitoring_namespace_labels: Annotated[
        str,
        typer.Option(
            metavar="NAME=VALUE[,...]",
            help="Labels of the namespaces that may scrape replicas.",
        ),
    ] = "kubernetes.io/metadata.name=monitoring",
    relist_seconds: Annotated[
        int, typer.Option(min=5, help="After so long everything is listed again.")
    ] = 240,
    replica_seconds: Annotated[
        float, typer.Option(min=1, help="Between two questions to each replica.")
    ] = 10.0,
    autoscale_seconds: Annotated[
        float,
        typer.Option(min=1, help="Between two looks at the demand of services that it scales."),
    ] = 3.0,
    accelerator_budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RESOURCE=N",
            help="Accelerators that all services together may have, such as nvidia.com/gpu=16; "
            "give it again for others. [default: any number]",
        ),
    ] = None,
    prometheus_address: Annotated[
        str, typer.Option(help="URL of the Prometheus that KEDA asks for services that name none.")
    ] = "http://prometheus-operated.monitoring.svc:9090",
    workers: Annotated[int, typer.Option(min=1, help="Services reconciled at once.")] = 8,
    host: Annotated[str, typer.Option(help="Address of /healthz and /metrics.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Their TCP port.")] = 8080,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(help="Least severe messages to log."),
    ] = "info",
) -> None:
    """Make the InferenceServices of a Kubernetes cluster run, and report what they are.

    It uses the service account of its pod, or KUBECONFIG. Of several operators with one Lease one
    acts, and the next takes over when that ends.
    """
    from pagelet.operator.planning.context import Context
    from pagelet.operator.run import main
    from pagelet.operator.settings import OperatorSettings

    own = own_namespace or _own_namespace()
    settings = OperatorSettings(
        context=Context(
            agent_image=agent_image,
            router_image=router_image,
            operator_namespace=own,
            monitoring_namespace_labels=_parse_labels(monitoring_namespace_labels),
            prometheus_address=prometheus_address,
        ),
        namespaces=tuple(namespace or ()),
        lease_namespace=lease_namespace or own,
        identity=identity or f"{socket.gethostname()}-{os.getpid()}",
        relist_seconds=relist_seconds,
        replica_seconds=replica_seconds,
        autoscale_seconds=autoscale_seconds,
        accelerator_budget=_parse_budget(accelerator_budget or []),
        workers=workers,
        host=host,
        port=port,
        log_level=log_level,
    )
    raise typer.Exit(main(settings))
