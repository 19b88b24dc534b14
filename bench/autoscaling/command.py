"""`pagelet bench autoscaling`."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from pagelet.bench.autoscaling.simulate import METHODS, Hardware, Method, Run, simulate
from pagelet.bench.autoscaling.trace import DAY, make_day
from pagelet.bench.figures import percentile
from pagelet.bench.load.report import check_plotting
from pagelet.bench.progress import show_progress
from pagelet.process.output import output_console
from pagelet.protocol.autoscaling.scaler import ScalingBounds


@dataclasses.dataclass(frozen=True)
class Service:
    """How large it is."""

    name: str
    rate: float
    """Requests a second on the busiest hour outside of bursts."""
    bounds: ScalingBounds


SERVICES: Final = (
    Service("large", 7.0, ScalingBounds(min_replicas=1, max_replicas=64)),
    Service("small, to zero", 0.05, ScalingBounds(min_replicas=0, max_replicas=4)),
)


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one run."""

    replica_hours: float
    ttft_p50: float
    ttft_p99: float
    """Seconds, of requests that were answered."""
    wait_p99: float
    """Of it, what a prompt's own prefill did not take."""
    most_replicas: int
    held: int
    shed: int
    requests: int


@dataclasses.dataclass(frozen=True)
class Case:
    """One run of the study."""

    service: str
    method: Method
    target: float
    figures: Figures
    counts: Sequence[tuple[float, int]]

    @property
    def is_usual(self) -> bool:
        """Whether the target is what people begin with."""
        return self.target == self.method.usual


def measure(run: Run) -> Figures:
    """The figures of a run."""
    return Figures(
        replica_hours=run.replica_seconds / 3600,
        ttft_p50=percentile(run.ttfts, 50),
        ttft_p99=percentile(run.ttfts, 99),
        wait_p99=percentile(run.waits, 99),
        most_replicas=max(count for _, count in run.counts),
        held=run.held,
        shed=run.shed,
        requests=len(run.ttfts) + run.shed,
    )


def autoscaling(
    hours: Annotated[float, typer.Option(min=1, help="Length of the day.")] = DAY / 3600,
    seed: Annotated[int, typer.Option(help="Of the trace.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw replicas over the day, as PNG or SVG."),
    ] = None,
) -> None:
    """Compare what to scale by, on a simulated day with bursts: backlog, queue length, KV use.

    The decisions are the autoscaler's own code; only replicas and time are simulated.
    A day takes a minute or two of one core.
    """
    if plot_file is not None:
        try:
            check_plotting()
        except ImportError as error:
            raise typer.BadParameter(str(error), param_hint="--plot") from None
    hardware = Hardware()
    cases: list[Case] = []
    count = len(SERVICES) * sum(len(method.targets) for method in METHODS)
    with show_progress(output_console(stderr=True)) as progress:
        for service in SERVICES:
            arrivals = make_day(service.rate, seed, seconds=hours * 3600)
            for method in METHODS:
                for target in method.targets:
                    by_target = f"{method.name} {target:g} {method.unit}".rstrip()
                    progress(f"{len(cases) + 1} of {count}: {service.name}, scaled by {by_target}")
                    by = method.measure(target, hardware.slots)
                    run = simulate(arrivals, by, service.bounds, hardware)
                    cases.append(Case(service.name, method, target, measure(run), run.counts))
    output_console().print(_table(cases))
    if json_file is not None:
        plain = [
            {
                "service": case.service,
                "by": case.method.name,
                "target": case.target,
                **dataclasses.asdict(case.figures),
            }
            for case in cases
        ]
        json_file.write_text(json.dumps(plain, indent=2) + "\n")
    if plot_file is not None:
        _plot(cases, plot_file)


def _table(cases: Sequence[Case]) -> Table:
    table = Table(
        *("service", "scaled by", "target", "replica-hours", "most", "TTFT p50", "p99"),
        *("wait p99", "held", "shed"),
    )
    for case in cases:
        one = case.figures
        table.add_row(
            case.service,
            case.method.name,
            f"{case.target:g} {case.method.unit}".strip() + (" *" if case.is_usual else ""),
            f"{one.replica_hours:.1f}",
            str(one.most_replicas),
            f"{one.ttft_p50:.2f} s",
            f"{one.ttft_p99:.1f} s",
            f"{one.wait_p99:.1f} s",
            str(one.held),
            f"{one.shed} of {one.requests}",
        )
    return table


def _plot(cases: Sequence[Case], path: Path) -> None:
    """For each service: replicas over the day with usual targets, and what less waiting costs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    services = list(dict.fromkeys(case.service for case in cases))
    figure = Figure(figsize=(11, 3.2 * len(services)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(services), 2, squeeze=False, width_ratios=(2, 1))
    for (day, cost), service in zip(grid, services, strict=True):
        for number, method in enumerate(METHODS):
            found = [case for case in cases if (case.service, case.method) == (service, method)]
            for case in found:
                if case.is_usual:
                    hours = [when / 3600 for when, _ in case.counts]
                    counts = [count for _, count in case.counts]
                    day.step(
                        hours, counts, where="post", label=method.name, lw=1, zorder=9 - number
                    )
            cost.plot(
                [case.figures.replica_hours for case in found],
                [max(0.1, case.figures.wait_p99) for case in found],
                "o-",
                color=f"C{number}",
                label=method.name,
            )
        day.set_title(f"{service}: replicas over the day", fontsize=9)
        day.set_xlabel("hour")
        cost.set_title("waiting (p99, s) over replica-hours", fontsize=9)
        cost.set_yscale("log")
        day.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
