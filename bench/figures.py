"""What a measurement brings: figures with their units and targets, as a table and as JSON."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured number: `name` says which of those of the `subject`."""

    subject: str
    name: str
    value: float
    unit: str
    target: float | None = None
    better: Literal["higher", "lower"] = "higher"

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "higher" else self.value <= self.target


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` (0 to 100) of all values do not exceed (nearest rank).

    Raises `ValueError` for no values.
    """
    if not values:
        raise ValueError("a percentile of no values")
    rank = -(-len(values) * percent // 100)  # rounded up
    return sorted(values)[max(int(rank), 1) - 1]


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, versions, and the time of day."""
    versions = {}
    for name in ("pagelet", "torch", "uvicorn", "uvloop"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a mere client has few
            versions[name] = importlib.metadata.version(name)
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def render(figures: Sequence[Figure], host: dict[str, Any]) -> Table:
    """The figures as a table whose caption describes the machine; fits 80 columns."""
    versions = ", ".join(f"{name} {version}" for name, version in host["versions"].items())
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        caption=f"{host['processor']}, {host['cores']} cores, load {host['load_average']}, "
        f"{host['system']}, Python {host['python']}, {versions}, {host['date']}",
        caption_justify="left",
    )
    table.add_column("subject", no_wrap=True)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    subject = ""
    for figure in figures:
        table.add_row(
            "" if figure.subject == subject else figure.subject,
            figure.name,
            f"{_number(figure.value)} {figure.unit}",
            _verdict(figure),
        )
        subject = figure.subject
    return table


def _verdict(figure: Figure) -> str:
    if figure.target is None:
        return ""
    sign = "≥" if figure.better == "higher" else "≤"
    met = "[green]met[/green]" if figure.met else "[red]missed[/red]"
    return f"{sign} {_number(figure.target)}: {met}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
