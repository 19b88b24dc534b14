"""`pagelet bench`: measurements of this machine, and of servers."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pagelet.bench import engine_core, http_streams, start_up
from pagelet.bench.autoscaling import command as autoscaling_command
from pagelet.bench.compare import command as compare_command
from pagelet.bench.figures import Figure, machine, render
from pagelet.bench.load import command as load_command
from pagelet.bench.offline import command as offline_command
from pagelet.bench.progress import Progress, show_progress
from pagelet.bench.quality import command as quality_command
from pagelet.bench.roofline import command as roofline_command
from pagelet.bench.routers import command as routers_command
from pagelet.bench.routing import command as routing_command
from pagelet.bench.server import ServerFailed
from pagelet.bench.tune import command as tune_command
from pagelet.process.output import output_console

Benchmark = Callable[[Progress], list[Figure]]
_BENCHMARKS: tuple[Benchmark, ...] = (
    engine_core.measure,
    http_streams.measure,
    start_up.measure_serve,
    start_up.measure_help,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def bench() -> None:
    """Measure this machine, and servers."""


app.command("autoscaling")(autoscaling_command.autoscaling)
app.command("serve")(load_command.serve)
app.command("engine")(offline_command.engine)
app.command("model")(roofline_command.model)
app.command("compare")(compare_command.compare)
app.command("quality")(quality_command.quality)
app.command("routers")(routers_command.routers)
app.command("router-cost")(routers_command.router_cost)
app.command("routing")(routing_command.routing)
app.command("tune")(tune_command.tune)


@app.command()
def host(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
) -> None:
    """The host's own cost: engine core and HTTP with a simulated model, and the start-up.

    Takes about a minute. Other work on the machine makes every figure worse. The exit code is 1
    if a measurement failed; a missed target is only shown.
    """
    console = output_console()
    host_machine = machine()
    figures: list[Figure] = []
    for benchmark in _BENCHMARKS:
        try:
            with show_progress(console) as progress:
                figures += benchmark(progress)
        except (ServerFailed, OSError, ValueError, RuntimeError) as error:
            output_console(stderr=True).print(f"failed: {error}", style="red", markup=False)
            raise typer.Exit(1) from error
    console.print(render(figures, host_machine))
    if json_file is not None:
        results = [dataclasses.asdict(figure) | {"met": figure.met} for figure in figures]
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps({"machine": host_machine, "figures": results}, indent=2))
