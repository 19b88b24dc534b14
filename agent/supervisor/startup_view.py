"""What is seen while a server starts: progress bars on a terminal, log lines elsewhere."""

import logging
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

log = logging.getLogger(__name__)
_PERCENT = re.compile(r"\s*(\d+)\s*%")


class StartupView:
    """Shows each process's stage, and in the end where the server is."""

    def __init__(self, url: str, stream: TextIO = sys.stderr) -> None:
        self._url = url
        self._stream = stream
        self._began = time.monotonic()
        self._shown: dict[str, str] = {}
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if stream.isatty():
            self._progress = _make_progress(stream)

    def show(self, stages: Sequence[tuple[str, str]]) -> None:
        """Shows (process, stage) pairs; "45%" inside of a stage moves its bar."""
        for name, text in stages:
            percent = _PERCENT.search(text)
            stage = _PERCENT.sub("", text)
            if self._progress is not None:
                if name not in self._tasks:
                    self._tasks[name] = self._progress.add_task(name, total=None, stage="")
                self._progress.update(
                    self._tasks[name],
                    total=100 if percent or stage == "ready" else None,
                    completed=int(percent[1]) if percent else 100 if stage == "ready" else 0,
                    stage=stage,
                )
            elif self._shown.get(name) != stage:
                log.info("%s: %s", name, stage)
            self._shown[name] = stage

    def announce(self, model_name: str, kv_cache_tokens: Sequence[int]) -> None:
        """Takes the bars away and says that the server is ready, and where.

        `kv_cache_tokens` has one size for each engine core.
        """
        seconds = time.monotonic() - self._began
        tokens = f"{kv_cache_tokens[0]:,} tokens" if kv_cache_tokens else "unknown"
        if len(kv_cache_tokens) > 1:
            tokens = f"{len(kv_cache_tokens)} x {tokens}"
        line = f"Serving {model_name} at {self._url} (KV cache: {tokens}; ready in {seconds:.1f} s)"
        if self._stream.isatty():
            self.close()
            print(line, file=self._stream, flush=True)
        else:
            log.info(line)

    def close(self) -> None:
        """Takes the bars away. May be called again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _make_progress(stream: TextIO) -> "Progress":
    # Imported only for a terminal: a pod's start does not pay for it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[stage]}"),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
    )
    progress.start()
    return progress
