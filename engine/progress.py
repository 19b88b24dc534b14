"""A progress bar on a terminal; silent where nobody watches."""

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ProgressBar:
    """A bar on stderr while the `with` block runs, if stderr is a terminal."""

    def __init__(self, label: str, total: int, *, enabled: bool = True) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not (enabled and sys.stderr.isatty()),
        )
        self._task = self._progress.add_task(label, total=total)

    def advance(self, count: int) -> None:
        """Takes the bar `count` steps on."""
        self._progress.advance(self._task, count)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class StageView:
    """One line on stderr that says what a start-up is at, if stderr is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._status = console.status("starting") if sys.stderr.isatty() else None

    def __call__(self, text: str) -> None:
        """What it is at now, such as "loading weights 45%"."""
        if self._status is not None:
            self._status.update(text)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
