"""A run's figures for people: a table, what to beware of, and a plot."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from pagelet.bench.load.records import Record

_LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end to end",
}
_COLUMNS = ("mean", "median", "p90", "p99")
BUSY_SHARE = 0.8
LAG_MS = 20.0


def render(figures: dict[str, Any]) -> Table:
    """The table of `bench serve`."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for name, text in _LATENCIES.items():
        if f"mean_{name}_ms" in figures:
            values = [f"{figures[f'{column}_{name}_ms']:,.2f}" for column in _COLUMNS]
            table.add_row(f"{text}, ms", *values)
    return table


def headline(figures: dict[str, Any]) -> list[str]:
    """Throughput, a line each."""
    total = figures["completed"] + figures["failed"]
    lines = [
        f"{figures['completed']:,} of {total:,} requests in {figures['duration']:.2f} s, "
        f"at most {figures['max_concurrent_requests']} at once",
        f"{figures['request_throughput']:.2f} requests/s, "
        f"{figures['output_throughput']:,.1f} output tokens/s, "
        f"{figures['total_token_throughput']:,.1f} tokens/s in all",
    ]
    if "request_goodput" in figures:
        lines.append(
            f"goodput {figures['request_goodput']:.2f} requests/s: "
            f"{100 * figures['good_share']:.1f} % kept the bounds"
        )
    if figures["total_cached_tokens"] is not None and figures["total_input_tokens"]:
        share = figures["total_cached_tokens"] / figures["total_input_tokens"]
        lines.append(f"{100 * share:.1f} % of prompt tokens came from the prefix cache")
    return lines


def warnings(figures: dict[str, Any]) -> list[str]:
    """Why these figures may not be what they seem."""
    found = [f"{count} failed: {reason}" for reason, count in figures["errors"].items()]
    if figures["client_cpu_share"] > BUSY_SHARE:
        found.append(
            f"this load generator used {100 * figures['client_cpu_share']:.0f} % of a core, so "
            "that it may have been the bottleneck: lower the load, or run several"
        )
    if figures["p99_client_lag_ms"] > LAG_MS:
        found.append(
            f"requests were sent up to {figures['p99_client_lag_ms']:.0f} ms late (p99), waiting "
            "for the generator or for --concurrency: latencies count from when they were sent"
        )
    return found


def check_plotting() -> None:
    """Raises `ImportError` with what to install, before a run instead of after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("a plot needs matplotlib: pip install 'pagelet[bench]'")


def plot(records: Sequence[Record], title: str, path: Path) -> None:
    """Latency distributions, and tokens and requests over time, as an image whose format is that
    of `path`'s suffix; see `check_plotting`."""
    # Imported here since it is an extra, and takes a while.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    good = [record for record in records if record.ok]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    latency, time = figure.subplots(1, 2)
    series = {
        "TTFT": [record.ttft for record in good],
        "TPOT": [tpot for record in good if (tpot := record.tpot) is not None],
        "ITL": [gap for record in good for gap in record.itl],
        "end to end": [record.e2e for record in good],
    }
    for name, seconds in series.items():
        if seconds:
            values = np.sort(seconds) * 1e3
            latency.step(values, np.arange(1, len(values) + 1) / len(values), label=name)
    latency.set_xscale("log")
    latency.set(xlabel="ms", ylabel="share of requests (ITL: of gaps)", ylim=(0, 1))
    latency.grid(alpha=0.3)
    latency.legend()
    tokens, running = over_time(good)
    time.plot(*tokens, color="tab:blue")
    time.set(xlabel="s", ylim=(0, None))
    time.set_ylabel("output events/s", color="tab:blue")
    time.grid(alpha=0.3)
    other = time.twinx()
    other.step(*running, where="post", color="tab:orange", alpha=0.7)
    other.set_ylabel("requests in flight", color="tab:orange")
    other.set_ylim(0, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def over_time(
    records: Sequence[Record], bins: int = 60
) -> tuple[tuple[list[float], list[float]], tuple[list[float], list[int]]]:
    """Events a second in `bins` parts of the run, and requests in flight at each change."""
    times = np.asarray([seen for record in records for seen in record.token_times])
    end = max((record.end for record in records), default=1.0)
    counts, edges = np.histogram(times, bins=bins, range=(0, end))
    rates = counts * bins / end
    middles = (edges[:-1] + edges[1:]) / 2
    changes = sorted(
        [(record.sent, 1) for record in records] + [(record.end, -1) for record in records]
    )
    in_flight = np.cumsum([change for _, change in changes])
    return (
        (middles.tolist(), rates.tolist()),
        ([moment for moment, _ in changes], in_flight.tolist()),
    )
