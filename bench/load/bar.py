"""A progress bar of requests."""

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pagelet.bench.load.records import Record
from pagelet.bench.load.run import Observer

_REFRESHES_PER_SECOND = 4  # it shares the core with what is measured


@contextlib.contextmanager
def request_bar(console: Console, total: int) -> Iterator[Observer]:
    """Gives an observer that takes the bar on; silent where `console` is no terminal."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
        console=console,
        transient=True,
        refresh_per_second=_REFRESHES_PER_SECOND,
        disable=not console.is_terminal,
    )
    begin = time.monotonic()
    tokens = failed = 0
    with progress:
        task = progress.add_task("requests", total=total, status="")

        def observe(record: Record) -> None:
            nonlocal tokens, failed
            tokens += record.output_tokens
            failed += not record.ok
            status = f"{tokens / (time.monotonic() - begin):,.0f} tokens/s"
            progress.update(task, advance=1, status=status + (f", {failed} failed" * bool(failed)))

        yield observe
