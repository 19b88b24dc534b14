"""Counters, gauges and histograms of one event loop, and Prometheus' text format.

The engine reports every token, and endpoint pickers poll every 50 ms, so both sides must be cheap:
a measurement is an addition on a plain number without a lock, and the text before each number is
made once. (prometheus_client locks each observation and formats each label anew.)
"""

import bisect
from collections.abc import Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def sample_prefix(name: str, labels: Sequence[tuple[str, str]]) -> str:
    """A sample's line up to its value."""
    if not labels:
        return f"{name} "
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in labels)
    return f"{name}{{{pairs}}} "


class Scalar:
    """A gauge or a counter; set or add to `value`."""

    __slots__ = ("_prefix", "value")

    def __init__(self, name: str, labels: Sequence[tuple[str, str]]) -> None:
        self.value: float = 0
        self._prefix = sample_prefix(name, labels)

    def lines(self) -> list[str]:
        """Sample lines."""
        return [f"{self._prefix}{self.value!r}"]


class Histogram:
    """Counts of observations up to each bound, and their sum."""

    __slots__ = ("_bounds", "_bucket_prefixes", "_count_prefix", "_counts", "_sum", "_sum_prefix")

    def __init__(
        self, name: str, labels: Sequence[tuple[str, str]], bounds: Sequence[float]
    ) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        limits = [repr(float(bound)) for bound in bounds] + ["+Inf"]
        self._bucket_prefixes = [
            sample_prefix(f"{name}_bucket", [*labels, ("le", limit)]) for limit in limits
        ]
        self._count_prefix = sample_prefix(f"{name}_count", labels)
        self._sum_prefix = sample_prefix(f"{name}_sum", labels)

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value`, `times` times."""
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def copy(self, other: "Histogram") -> None:
        """Shows what `other`, of the same bounds, has observed."""
        self._counts = list(other._counts)
        self._sum = other._sum

    def lines(self) -> list[str]:
        """Sample lines; a bucket's count includes those below it."""
        lines, total = [], 0
        for prefix, count in zip(self._bucket_prefixes, self._counts, strict=True):
            total += count
            lines.append(f"{prefix}{total}")
        lines.append(f"{self._count_prefix}{total}")
        lines.append(f"{self._sum_prefix}{self._sum!r}")
        return lines


class Family:
    """All series of one name, under their HELP and TYPE lines."""

    def __init__(self, name: str, kind: str, help_text: str) -> None:
        text = help_text.replace("\\", r"\\").replace("\n", r"\n")
        self._header = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        self.series: list[Scalar | Histogram] = []

    def lines(self) -> list[str]:
        """Header and sample lines."""
        lines = list(self._header)
        for series in self.series:
            lines += series.lines()
        return lines


def render(families: Sequence[Family]) -> bytes:
    """The whole exposition."""
    lines: list[str] = []
    for family in families:
        lines += family.lines()
    return ("\n".join(lines) + "\n").encode()
