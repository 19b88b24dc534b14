"""An explanation for people."""

import datetime
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pagelet.router.record import Attempt, RequestRecord


def explain(record: RequestRecord) -> Iterator[RenderableType]:
    """What became of a request, each choice of a replica with all its candidates, and what
    happened when."""
    yield _headline(record)
    yield Text(", ".join(_facts(record)))
    for number, attempt in enumerate(record.attempts, 1):
        yield Text()
        yield _attempt_line(number, attempt)
        yield _candidates(attempt)
    if record.timeline:
        yield Text()
        yield _timeline(record)


def _headline(record: RequestRecord) -> Text:
    line = Text(record.request_id, "bold")
    line.append(f"  {record.method} {record.path}", "not bold")
    line.append(f"  {record.status or 'running'}", "green" if record.status == 200 else "red")
    if record.error:
        line.append(f" {record.error}", "red")
    return line


def _facts(record: RequestRecord) -> Iterator[str]:
    arrived = datetime.datetime.fromtimestamp(record.arrived, datetime.UTC)
    yield f"{arrived:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
    if record.tenant:
        yield f"tenant {record.tenant}"
    if record.model:
        yield f"model {record.model}"
    if record.adapter_of:
        yield f"an adapter of {record.adapter_of}"
    if record.pool:
        yield f"pool {record.pool}"
    if record.prompt_tokens:
        yield f"{record.prompt_tokens} prompt tokens"
    if record.attempts:
        predicted = f"{record.attempts[-1].predicted_hit_tokens} predicted"
        actual = "unknown" if record.cached_tokens is None else f"{record.cached_tokens} found"
        yield f"in the cache: {predicted}, {actual}"
    if record.completion_tokens:
        yield f"{record.completion_tokens} generated"
    if record.waited_seconds:
        yield f"waited {_duration(record.waited_seconds)}"
    if record.overhead_seconds is not None:
        yield f"router {_duration(record.overhead_seconds)}"
    if record.ttft_seconds is not None:
        yield f"first byte after {_duration(record.ttft_seconds)}"
    if record.seconds is not None:
        yield f"over after {_duration(record.seconds)}"


def _attempt_line(number: int, attempt: Attempt) -> Text:
    line = Text(f"{number}. ", "bold")
    line.append(f"{attempt.replica_id}", "bold cyan")
    line.append(f" at {_duration(attempt.at)}: {attempt.reason}", "not bold")
    outcome = attempt.outcome or "running"
    line.append(f"; {outcome}", "green" if outcome == "completed" else "yellow")
    return line


def _candidates(attempt: Attempt) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 3), header_style="dim")
    table.add_column("replica", no_wrap=True)
    for name in ("hit tokens", "wait", "TTFT", "load", "score"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("note")
    for candidate in sorted(attempt.candidates, key=lambda candidate: candidate.score):
        table.add_row(
            Text(candidate.replica_id),
            str(candidate.hit_tokens),
            _duration(candidate.wait_seconds),
            _duration(candidate.ttft_seconds),
            f"{candidate.load:.4g}",
            f"{candidate.score:.4g}",
            Text(candidate.note),
            style="cyan" if candidate.replica_id == attempt.replica_id else None,
        )
    return table


def _timeline(record: RequestRecord) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("event")
    for event in record.timeline:
        table.add_row(_duration(event.at), Text(f"{event.what} {event.detail}".rstrip()))
    return table


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
