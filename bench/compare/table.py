"""Ratios with their spread, as a markdown table and as a plot."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagelet.bench.compare.presets import Metric, Preset
from pagelet.bench.compare.rounds import Measurement


@dataclasses.dataclass(frozen=True)
class Spread:
    """Least, middle and greatest of several rounds' values."""

    least: float
    median: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(min(values), statistics.median(values), max(values))

    def __str__(self) -> str:
        if self.least == self.greatest:
            return _number(self.median)
        return f"{_number(self.median)} ({_number(self.least)} to {_number(self.greatest)})"


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure of one server, and how many times better the first server's is."""

    workload: str
    metric: Metric
    peer: str
    value: Spread | None
    """None if no round brought one, as when all requests failed."""
    advantage: Spread | None
    """Of the first server over this one, from the ratio of each round; None for the first one."""
    failed: int
    """Requests of the workload that failed, in all rounds."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A figure of one of the first server's variants against the best of all other servers."""

    workload: str
    metric: Metric
    own: str
    rival: str
    """The other server, and its variant, that is best at this figure."""
    advantage: Spread


def compare(
    measurements: Sequence[Measurement], presets: Sequence[Preset], peers: Sequence[str]
) -> list[Row]:
    """Rows by workload, figure and server; the first of `peers` is what the others are held
    against."""
    rows = []
    for preset in presets:
        by_peer = {peer: _rounds(measurements, preset, peer) for peer in peers}
        for metric in preset.metrics:
            first = _values(by_peer[peers[0]], metric)
            for peer in peers:
                values = _values(by_peer[peer], metric)
                ratios = _ratios(metric, first, values)
                rows.append(
                    Row(
                        preset.name,
                        metric,
                        peer,
                        Spread.of(list(values.values())) if values else None,
                        Spread.of(ratios) if ratios and peer != peers[0] else None,
                        sum(int(figures["failed"]) for figures in by_peer[peer].values()),
                    )
                )
    return rows


def against_the_best(
    measurements: Sequence[Measurement], presets: Sequence[Preset], peers: Sequence[str]
) -> list[Verdict]:
    """How each variant of the first server does against whichever of the others is best, figure by
    figure; none where either has no value."""
    name = _name(peers[0])
    rivals = [peer for peer in peers if _name(peer) != name]
    verdicts = []
    for preset in presets:
        for metric in preset.metrics:
            values = {
                peer: found
                for peer in peers
                if (found := _values(_rounds(measurements, preset, peer), metric))
            }
            ranked = sorted(
                (peer for peer in rivals if peer in values),
                key=lambda peer: statistics.median(values[peer].values()),
                reverse=metric.better == "higher",
            )
            for own in peers:
                if not ranked or own not in values or _name(own) != name:
                    continue
                ratios = _ratios(metric, values[own], values[ranked[0]])
                if ratios:
                    verdict = Verdict(preset.name, metric, own, ranked[0], Spread.of(ratios))
                    verdicts.append(verdict)
    return verdicts


def _name(peer: str) -> str:
    return peer.partition(":")[0]


def _rounds(
    measurements: Sequence[Measurement], preset: Preset, peer: str
) -> dict[int, dict[str, Any]]:
    """Figures by round."""
    return {
        found.round: found.figures
        for found in measurements
        if (found.workload, found.peer) == (preset.name, peer)
    }


def _values(rounds: dict[int, dict[str, Any]], metric: Metric) -> dict[int, float]:
    found = {number: metric.of(figures) for number, figures in rounds.items()}
    return {number: value for number, value in found.items() if value}


def _ratios(metric: Metric, own: dict[int, float], other: dict[int, float]) -> list[float]:
    """How many times better `own` is, in each round that both have."""
    both = own.keys() & other.keys()
    if metric.better == "higher":
        return [own[number] / other[number] for number in both]
    return [other[number] / own[number] for number in both]


def markdown(rows: Sequence[Row], first: str) -> str:
    """A table of medians with the least and the greatest round in brackets."""
    lines = [
        f"| workload | figure | server | value | {first} is better by |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for row in rows:
        value = "-" if row.value is None else str(row.value)
        if row.failed:
            value += f", {row.failed} failed"
        advantage = "" if row.advantage is None else f"{row.advantage} times"
        lines.append(f"| {row.workload} | {row.metric.text} | {row.peer} | {value} | {advantage} |")
    return "\n".join(lines) + "\n"


def markdown_verdicts(verdicts: Sequence[Verdict]) -> str:
    """A table of `against_the_best`."""
    lines = [
        "| workload | figure | server | the best other server | is better by |",
        "| --- | --- | --- | --- | ---: |",
    ]
    lines += [
        f"| {found.workload} | {found.metric.text} | {found.own} | {found.rival} "
        f"| {found.advantage} times |"
        for found in verdicts
    ]
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row], peers: Sequence[str], path: Path) -> None:
    """For each workload its first figure, a bar a server, with the rounds' spread; see
    `pagelet.bench.load.report.check_plotting`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    leading: dict[str, list[Row]] = {}
    for row in rows:
        group = leading.setdefault(row.workload, [])
        if not group or group[0].metric == row.metric:
            group.append(row)
    figure = Figure(figsize=(2.6 * len(leading) + 1, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(leading), squeeze=False)[0]
    colors = {peer: f"C{index}" for index, peer in enumerate(peers)}
    for panel, (workload, group) in zip(panels, leading.items(), strict=True):
        shown = [(row.peer, row.value) for row in group if row.value is not None]
        panel.bar(
            range(len(shown)),
            [value.median for _, value in shown],
            yerr=[
                [value.median - value.least for _, value in shown],
                [value.greatest - value.median for _, value in shown],
            ],
            color=[colors[peer] for peer, _ in shown],
            capsize=3,
        )
        panel.set_xticks(range(len(shown)), [peer for peer, _ in shown], rotation=30, ha="right")
        better = "more" if group[0].metric.better == "higher" else "less"
        panel.set_title(f"{workload}\n{group[0].metric.text} ({better} is better)", fontsize=8)
        panel.tick_params(labelsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
