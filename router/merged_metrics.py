"""The metrics of a router's workers as those of one server."""

from collections.abc import Iterable
from typing import Final

from pagelet.protocol.router_metrics import SAME_IN_ALL_WORKERS

_LARGEST: Final = SAME_IN_ALL_WORKERS | {
    *("process_start_time_seconds", "process_max_fds", "python_info"),
}
"""Metrics of which the workers' largest value is shown; all others add up."""


class _Family:
    def __init__(self, name: str) -> None:
        self.name = name
        self.header: list[str] = []
        self.samples: dict[str, float] = {}

    def add(self, sample: str, value: float) -> None:
        known = self.samples.get(sample)
        if known is not None:
            value = max(known, value) if self.name in _LARGEST else known + value
        self.samples[sample] = value

    def lines(self) -> Iterable[str]:
        yield from self.header
        for sample, value in self.samples.items():
            yield f"{sample} {value!r}"


def merge(texts: Iterable[bytes]) -> bytes:
    """One text of Prometheus' format, as `protocol.exposition` writes it, from several."""
    families: dict[str, _Family] = {}
    for text in texts:
        family = None
        for line in text.decode().split("\n"):  # the format knows no other end of a line
            if line.startswith("#"):
                _, _, rest = line.split(" ", 2)
                name = rest.split(" ", 1)[0]
                family = families.setdefault(name, _Family(name))
                if len(family.header) < 2 and line not in family.header:
                    family.header.append(line)
            elif line:
                assert family is not None, "a sample without a header"
                sample, _, value = line.rpartition(" ")
                family.add(sample, float(value))
    lines = [line for family in families.values() for line in family.lines()]
    return ("\n".join(lines) + "\n").encode()
