"""What a check of this machine found: the same words in `pagelet doctor` and `pagelet serve`."""

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
