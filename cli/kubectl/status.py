"""Services and their replicas as tables."""

import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from pagelet.process.output import output_console

_COST = "controller.kubernetes.io/pod-deletion-cost"


def show_all(services: list[Any]) -> None:
    """A line for each service."""
    table = _table("NAMESPACE", "NAME", "MODEL", "READY", "STATUS", "MESSAGE")
    for service in services:
        ready = _conditions(service).get("Ready", {})
        table.add_row(
            service["metadata"]["namespace"],
            service["metadata"]["name"],
            service["spec"]["model"]["uri"],
            _counts(service),
            ready.get("reason", "Unknown"),
            ready.get("message", "no operator has seen it yet"),
        )
    _console().print(table)


def show_one(service: Any, pods: list[Any]) -> None:
    """A service with its conditions and pods."""
    console, status = _console(), service.get("status") or {}
    metadata = service["metadata"]
    console.print(f"{metadata['namespace']}/{metadata['name']}: {service['spec']['model']['uri']}")
    if endpoint := status.get("endpoint"):
        console.print(f"endpoint: {endpoint}")
    if status.get("observedGeneration") != metadata.get("generation"):
        console.print("the operator has not seen the last change of the spec yet")
    table = _table("CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE")
    for condition in status.get("conditions") or ():
        table.add_row(
            condition["type"],
            condition["status"],
            _age(condition["lastTransitionTime"]),
            condition["reason"],
            condition["message"],
        )
    if table.rows:
        console.print(table)
    rates = {rate["pod"]: rate for rate in status.get("rates") or ()}
    table = _table("POD", "STATE", "RESTARTS", "NODE", "PREFILL TOK/S", "STEP MS", "COST")
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        name = pod["metadata"]["name"]
        rate = rates.get(name, {})
        step = rate.get("decodeStepSeconds")
        table.add_row(
            name,
            _state(pod),
            str(sum(c.get("restartCount", 0) for c in _containers(pod))),
            pod["spec"].get("nodeName", ""),
            _figure(rate.get("prefillTokensPerSecond")),
            _figure(None if step is None else 1000 * step),
            (pod["metadata"].get("annotations") or {}).get(_COST, ""),
        )
    if table.rows:
        console.print(table)
    else:
        console.print("it has no pods")


def _conditions(service: Any) -> dict[str, Any]:
    conditions = (service.get("status") or {}).get("conditions") or ()
    return {condition["type"]: condition for condition in conditions}


def _counts(service: Any) -> str:
    ready = (service.get("status") or {}).get("readyReplicas", 0)
    return f"{ready}/{service['spec']['replicas']}"


def _containers(pod: Any) -> list[Any]:
    return list(pod.get("status", {}).get("containerStatuses") or ())


def _state(pod: Any) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "draining"
    for container in _containers(pod):
        if waiting := container.get("state", {}).get("waiting"):
            return str(waiting.get("reason", "waiting"))
    conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions") or ()}
    if conditions.get("Ready") == "True":
        return "ready"
    return "loading" if conditions.get("Initialized") == "True" else "starting"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def _age(moment: str) -> str:
    then = datetime.datetime.fromisoformat(moment)
    seconds = int((datetime.datetime.now(datetime.UTC) - then).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="", show_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _console() -> Console:
    """Tables for a pipe are not cut."""
    return output_console(markup=False)
