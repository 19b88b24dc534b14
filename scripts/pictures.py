"""Pictures of Grafana dashboards, from the JSON that Grafana imports: panels lie where `gridPos`
puts them, and show what their queries find in a Prometheus."""

import datetime
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from PIL import Image

Series = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and values by Unix seconds."""
Find = Callable[[str], Sequence[Series]]
"""Answers PromQL for the time that is shown."""

_COLUMNS: Final = 24
_WIDTH: Final = 13.0  # inches
_CELL: Final = 0.33
"""Height in inches of one unit of `gridPos`."""
_HEADER: Final = 0.55
_DPI: Final = 80
_PAGE, _PANEL, _EDGE, _TEXT, _FAINT = "#f4f5f5", "#ffffff", "#d8d9da", "#24292e", "#8a8f94"
_COLOURS: Final = (
    *("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#f2495c", "#b877d9", "#37872d", "#8ab8ff"),
    *("#705da0", "#c4162a", "#447ebc", "#e0b400"),
)
_LEGEND_LINES: Final = 3
_KEPT_COLOURS: Final = 255
_TICKS: Final = 4
_STEPS: Final = (5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
"""In seconds, of the ticks of times."""
_LONGEST_GAP: Final = 1.5
"""In steps of a query, after which a line is not drawn on."""


def draw(
    file: Path,
    find: Find,
    time: tuple[float, float],
    rate_interval: str,
    chosen: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Figure, list[str]]:
    """A dashboard from one Unix second to another, and the titles of panels for which nothing was
    found. `chosen` are the values of its variables, which are regular expressions."""
    dashboard = json.loads(file.read_text())
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    height = rows * _CELL + _HEADER
    figure = Figure(figsize=(_WIDTH, height), facecolor=_PAGE)
    FigureCanvasAgg(figure)
    variables = [v["name"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    shown = "    ".join(f"{name}: {chosen.get(name, 'All')}" for name in variables)
    top = 1 - _HEADER / 2 / height
    figure.text(0.01, top, dashboard["title"], size=13, weight="bold", va="center", color=_TEXT)
    figure.text(0.99, top, shown, size=9, va="center", ha="right", color=_FAINT)
    empty = []
    for panel in dashboard["panels"]:
        left, bottom, width, tall = _place(panel["gridPos"], height)
        if panel["type"] == "row":
            label = f"\N{BLACK DOWN-POINTING SMALL TRIANGLE} {panel['title']}"
            figure.text(left + 0.005, bottom + tall / 2, label, size=10, va="center", color=_TEXT)
            continue
        pad_x, pad_y = 0.05 / _WIDTH, 0.05 / height
        card = (left + pad_x, bottom + pad_y, width - 2 * pad_x, tall - 2 * pad_y)
        frame = figure.add_axes(card, facecolor=_PANEL, xticks=[], yticks=[])
        for spine in frame.spines.values():
            spine.set_color(_EDGE)
        queries = [
            (fill(target["expr"], variables, rate_interval, chosen), target["legendFormat"])
            for target in panel["targets"]
        ]
        found = [one for query, legend in queries for one in named(find(query), legend)]
        _plot(frame, panel, found, time)
        if not found:
            empty.append(panel["title"])
    return figure, empty


def _place(place: Mapping[str, int], height: float) -> tuple[float, float, float, float]:
    """Left, bottom, width and height as shares of a figure that is `height` inches high."""
    bottom = height - _HEADER - (place["y"] + place["h"]) * _CELL
    return (
        place["x"] / _COLUMNS,
        bottom / height,
        place["w"] / _COLUMNS,
        place["h"] * _CELL / height,
    )


def fill(
    query: str, variables: Sequence[str], rate_interval: str, chosen: Mapping[str, str]
) -> str:
    """A query with Grafana's variables filled in; one that nothing is chosen of stands for all."""
    for name in variables:
        query = query.replace(f'${name}"', f'{chosen.get(name, ".*")}"')
    return query.replace("$__rate_interval", rate_interval)


def named(found: Sequence[Series], legend: str) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Each series with its legend, in which `{{label}}` stands for a label's value."""
    for labels, values in found:
        parts = re.split(r"\{\{(\w+)\}\}", legend)  # text and names of labels in turn
        parts[1::2] = [labels.get(label, "") for label in parts[1::2]]
        yield "".join(parts).strip(), values


def _plot(
    frame: Axes,
    panel: Mapping[str, Any],
    found: Sequence[tuple[str, list[tuple[float, float]]]],
    time: tuple[float, float],
) -> None:
    """One plot over time, in a card with a title above and a legend below it."""
    frame.text(
        0.015,
        0.965,
        panel["title"],
        transform=frame.transAxes,
        size=9,
        weight="bold",
        va="top",
        color=_TEXT,
    )
    wide = panel["gridPos"]["w"] / _COLUMNS
    lines = _legend(frame, [name for name, _ in found], wide)
    low = 0.15 + 0.065 * lines
    left = 0.045 / wide
    axes = frame.inset_axes((left, low, 1 - left - 0.02, 0.86 - low))
    for index, (_, values) in enumerate(found):
        colour = _COLOURS[index % len(_COLOURS)]
        drawn = list(with_gaps(values))
        times = [_date(at) for at, _ in drawn]
        numbers = [number for _, number in drawn]
        axes.plot(times, numbers, color=colour, linewidth=1.1)  # type: ignore[arg-type]
        axes.fill_between(times, numbers, color=colour, alpha=0.08)  # type: ignore[arg-type]
    highest = max((n for _, values in found for _, n in values if not math.isnan(n)), default=0.0)
    axes.set_ylim(0, highest * 1.08 or 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit(value, panel_unit(panel))))
    axes.yaxis.set_major_locator(
        MultipleLocator(2.0 ** math.ceil(math.log2(highest / _TICKS)))
        if panel_unit(panel) == "bytes" and highest
        else MaxNLocator(_TICKS + 1)
    )
    axes.xaxis.set_major_locator(_dates(time[1] - time[0], max(3, int(13 * wide))))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))  # type: ignore[no-untyped-call]
    axes.set_xlim(_date(time[0]), _date(time[1]))  # type: ignore[arg-type]
    axes.grid(color=_EDGE, linewidth=0.5)
    axes.tick_params(labelsize=7, color=_EDGE, labelcolor=_FAINT, length=2)
    axes.set_facecolor(_PANEL)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if not found:
        axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", color=_FAINT)


def _legend(frame: Axes, names: Sequence[str], wide: float) -> int:
    """Writes it, in a card of this share of the page's width; the number of its lines."""
    per_line = int(210 * wide)
    lines: list[list[tuple[int, str]]] = [[]]
    for index, name in enumerate(names):
        used = sum(len(other) + 4 for _, other in lines[-1])
        if lines[-1] and used + len(name) > per_line:
            lines.append([])
        lines[-1].append((index, name))
    hidden = sum(map(len, lines[_LEGEND_LINES:]))
    del lines[_LEGEND_LINES:]
    if hidden:
        lines[-1].append((-1, f"and {hidden} more"))
    for number, line in enumerate(reversed(lines)):
        at = 0.02
        for index, name in line:
            y = 0.04 + 0.065 * number
            if index >= 0:
                frame.plot(
                    [at, at + 0.005 / wide - 0.003],
                    [y, y],
                    transform=frame.transAxes,
                    linewidth=2.5,
                    color=_COLOURS[index % len(_COLOURS)],
                    clip_on=False,
                )
            frame.text(
                at + 0.006 / wide,
                y,
                name,
                transform=frame.transAxes,
                size=7,
                va="center",
                color=_TEXT,
            )
            at += (len(name) + 4) / per_line * 0.93
    return len(lines)


def _date(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _dates(seconds: float, most: int) -> MultipleLocator:
    """Ticks of a time that is so long."""
    step = next(step for step in _STEPS if seconds / step <= most)
    return MultipleLocator(step / datetime.timedelta(days=1).total_seconds())


def with_gaps(values: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The values of one series, with NaN where some are missing."""
    steps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(values)]
    step = min(steps, default=0.0)
    for gap, value in zip([0.0, *steps], values, strict=False):
        if gap > _LONGEST_GAP * step:
            yield value[0] - step, math.nan
        yield value


def panel_unit(panel: Mapping[str, Any]) -> str:
    """One of Grafana's."""
    return str(panel["fieldConfig"]["defaults"]["unit"])


def unit(value: float, name: str) -> str:
    """A number as Grafana writes it on an axis."""
    if value == 0 and name == "s":
        return "0 s"
    match name:
        case "percentunit":
            return f"{value * 100:.3g}%"
        case "s":
            return _scaled(value, ((1, " s"), (1e-3, " ms"), (1e-6, " µs")))
        case "bytes":
            sizes = ((1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B"))
            return _scaled(value, sizes)
    short = _scaled(value, ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"), (1, "")))
    return f"{short} req/s" if name == "reqps" else short


def _scaled(value: float, scales: Sequence[tuple[float, str]]) -> str:
    for size, suffix in scales:
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    size, suffix = scales[-1]
    return f"{value / size:.3g}{suffix}"


def save(figure: Figure, path: Path) -> None:
    """As a PNG of few colours."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    figure.set_dpi(_DPI)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    picture = Image.fromarray(pixels).convert("RGB")
    picture.quantize(_KEPT_COLOURS).save(path, optimize=True)
