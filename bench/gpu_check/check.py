"""What a check of a GPU found."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Literal

Status = Literal["passed", "failed", "not run"]


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    words: str
    """What was seen, in one line."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Checks that run one after another."""

    name: str
    run: Callable[[], Iterable[Check]]


def run_parts(
    parts: Iterable[Part], seconds: float, tell: Callable[[str], None] = lambda text: None
) -> list[Check]:
    """Runs all parts, and begins none any more when so many seconds have passed. A part that raises
    has failed; the others run all the same."""
    began = time.monotonic()
    found: list[Check] = []
    for part in parts:
        if time.monotonic() - began > seconds:
            found.append(Check(part.name, "not run", f"{seconds:.0f} s were over"))
            continue
        tell(part.name)
        try:
            for check in part.run():
                tell(f"  {check.name}: {check.status}: {check.words}")
                found.append(check)
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            found.append(Check(part.name, "failed", words[:500]))
            tell(f"  {part.name}: failed: {words}")
    return found
