"""What a check of this machine found: the same words in `pagelet doctor` and `pagelet serve`."""

from collections.abc import Iterator
from typing import Literal

import msgspec

Status = Literal["ok", "warn", "fail", "absent"]


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """One thing of this machine, and whether it fits."""

    name: str
    status: Status
    """fail: serving will not work. warn: it will, but slower or with less. absent: it is not
    there, which is no fault."""
    summary: str
    """One line for people."""
    facts: dict[str, object] = {}
    """The same for machines."""
    advice: str = ""
    """What to change, if something does not fit."""

    @property
    def words(self) -> str:
        """Name, summary and advice in one line."""
        return f"{self.name}: {self.summary}" + (f"; {self.advice}" if self.advice else "")


def format_bytes(size: float) -> str:
    """Such as "1.5 GiB"."""
    units: Iterator[str] = iter(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = next(units)
    while size >= 1024:
        size /= 1024
        unit = next(units)
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
