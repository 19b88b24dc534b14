"""`kubectl pagelet`: InferenceServices for people.

kubectl finds the program `kubectl-pagelet` by its name, and whatever reaches the cluster goes
through kubectl, with its context and credentials.
"""

import os
import shutil
import subprocess
import sys
from typing import Annotated

import typer

from pagelet.cli.api_key import checked_key
from pagelet.cli.kubectl.kubectl import KubectlFailed, Target, forwarded

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="InferenceServices of a cluster, for people.",
)

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="[default: kubectl's own]")
]
Context = Annotated[str | None, typer.Option("--context", help="[default: kubectl's own]")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="PAGELET_API_KEY", callback=checked_key, help="A tenant's key.", show_default=False
    ),
]
Name = Annotated[str, typer.Argument(metavar="SERVICE")]


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[SERVICE]")] = None,
    namespace: Namespace = None,
    context: Context = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")
    ] = False,
) -> None:
    """Show services, or one of them with its conditions, replicas and their speed."""
    from pagelet.cli.kubectl.status import show_all, show_one

    target = Target(namespace, context)
    if name is not None:
        service = target.service(name)
        pods = target.get("pods", selector=f"pagelet.dev/service={name}")["items"]
        show_one(service, pods)
    elif services := target.get("inferenceservices", everywhere=everywhere)["items"]:
        show_all(services)
    elif everywhere:
        typer.echo("There are no InferenceServices in this cluster.", err=True)
    else:
        where = "this namespace" if namespace is None else f"the namespace {namespace}"
        typer.echo(f"There are no InferenceServices in {where}; -A shows all.", err=True)


@app.command()
def logs(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    router: Annotated[bool, typer.Option("--router", help="Of the routers.")] = False,
    loader: Annotated[
        bool, typer.Option("--loader", help="Of what downloads the model of each replica.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option(min=-1, help="Lines of each pod; -1 for all.")] = 100,
) -> None:
    """Print the logs of all replicas of a service, of their loaders, or of its routers."""
    if router and loader:
        raise typer.BadParameter("routers have no loader: give --router or --loader")
    target, component = Target(namespace, context), "router" if router else "agent"
    pods = target.pods(name, component)
    if not pods:
        raise KubectlFailed(f"{name} has no {component} yet: see {target.hint('status', name)}")
    container = "fetch-model" if loader else component
    if loader and not any(
        each["name"] == container for each in pods[0]["spec"].get("initContainers") or ()
    ):
        raise KubectlFailed(f"the model of {name} is not downloaded: it has no loader")
    selector = f"pagelet.dev/service={name},pagelet.dev/component={component}"
    arguments = ["logs", f"--selector={selector}", f"--container={container}", "--prefix"]
    arguments += [f"--tail={tail}", "--max-log-requests=64", *(["--follow"] if follow else [])]
    raise typer.Exit(target.run(arguments))


@app.command()
def explain(
    name: Name,
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="As in the answer's header X-Request-Id.")
    ],
    namespace: Namespace = None,
    context: Context = None,
    api_key: ApiKey = None,
) -> None:
    """Show why a request went where it went."""
    target = Target(namespace, context)
    pods = [pod["metadata"]["name"] for pod in target.pods(name, "router")]
    if not pods:
        raise KubectlFailed(f"{name} has no router yet: see {target.hint('status', name)}")
    environment = os.environ | ({} if api_key is None else {"PAGELET_API_KEY": api_key})
    for pod in pods:  # the one that had the request knows of it
        with forwarded(target, f"pod/{pod}", 8000) as port:
            command = [sys.executable, "-m", "pagelet.cli", "explain", request_id]
            command += ["--router", f"http://127.0.0.1:{port}"]
            result = subprocess.run(
                command, env=environment, check=False, capture_output=True, text=True
            )
        if result.returncode == 0:
            typer.echo(result.stdout, nl=False)
            return
    typer.echo(result.stderr, err=True, nl=False)
    raise typer.Exit(1)


@app.command()
def doctor(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Say what does not fit together in the pods of a service: `pagelet doctor` in one of them."""
    target = Target(namespace, context)
    running = [
        pod["metadata"]["name"]
        for pod in target.pods(name, "agent")
        if pod.get("status", {}).get("phase") == "Running"
    ]
    if not running:
        raise KubectlFailed(f"no replica of {name} runs: see {target.hint('status', name)}")
    # Its port is taken, by the server beside which it runs.
    command = ["exec", running[0], "--container=agent", "--", "pagelet", "doctor", "--port=8001"]
    raise typer.Exit(target.run(command))


@app.command()
def chat(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    api_key: ApiKey = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
) -> None:
    """Talk to a service from this terminal, through a port that kubectl forwards."""
    from pagelet.cli.kubectl.chat import talk

    target = Target(namespace, context)
    service = target.service(name)
    if not (service.get("status") or {}).get("endpoint"):
        raise KubectlFailed(f"{name} has no endpoint yet: see {target.hint('status', name)}")
    model = (service["spec"]["model"].get("servedNames") or [name])[0]
    port = service["spec"]["exposure"]["service"]["port"]
    with forwarded(target, f"service/{name}", port) as local:
        talk(f"http://127.0.0.1:{local}", model, api_key, system)


def main() -> None:
    """Entry point."""
    if shutil.which("kubectl") is None:
        sys.exit("Error: kubectl is not installed, or not in PATH")
    try:
        app(prog_name="kubectl pagelet")
    except KubectlFailed as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
