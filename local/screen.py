"""The status of local mode: a screen that stays on a terminal, a table, or a line an event."""

import abc
import contextlib
import logging
import time
from collections import deque
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pagelet.local.rollout import Phase
from pagelet.local.status import ReplicaStatus, ServerStatus, Status

_EVENTS = 6
_STYLES = {
    Phase.READY: "green",
    Phase.STARTING: "yellow",
    Phase.BACKING_OFF: "red",
    Phase.FAILED: "red",
    Phase.DRAINING: "cyan",
    Phase.STOPPED: "dim",
}
_NAMES = ("service", "replica")
_COLUMNS = ("state", "pid", "port")
_FIGURES = ("load", "queue", "KV", "hits", "tok/s", "restarts")


def overview(status: Status) -> Group:
    """The table, and what needs someone's attention."""
    lines = [Text(problem, "red") for problem in status.problems]
    if status.problems:
        lines.append(Text("nothing is changed until the file is right", "red"))
    lines += [Text(failure, "red") for failure in status.failures]
    lines += [Text(f"warning: {warning}", "yellow") for warning in status.warnings]
    for pool in status.pools:
        lines += [Text(f"{r.id}: {r.stage}", "dim") for r in pool.replicas if r.stage]
    return Group(_table(status), *lines)


def _table(status: Status) -> Table:
    """A row for the router and for each replica."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in _NAMES:  # fold on a narrow terminal, so that no figure is cut
        table.add_column(name, overflow="fold")
    for name in _COLUMNS:
        table.add_column(name, no_wrap=True)
    for name in _FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("", *_server_cells(status.router), *[""] * 5, str(status.router.restarts))
    for pool in status.pools:
        label = f"{pool.name} {pool.ready}/{pool.wanted}"
        if not pool.replicas:
            table.add_row(label, Text("none", "dim"))
        for number, replica in enumerate(pool.replicas):
            first = label if number == 0 else ""
            table.add_row(first, *_server_cells(replica), *_load_cells(replica))
    return table


def _server_cells(server: ServerStatus) -> list[Text]:
    state = Text(server.phase, _STYLES[server.phase])
    if isinstance(server, ReplicaStatus) and not server.is_current:
        state.append(", old", "dim")
    pid = "" if server.pid is None else str(server.pid)
    return [Text(server.id), state, Text(pid), Text(str(server.port))]


def _load_cells(replica: ReplicaStatus) -> list[str]:
    load = replica.load
    hits = "" if load.prefix_hit_rate is None else f"{load.prefix_hit_rate:.0%}"
    return [
        str(load.in_flight),
        f"{load.running}+{load.waiting}",
        f"{load.kv_cache_usage:.0%}",
        hits,
        f"{load.tokens_per_second:,.0f}",
        str(replica.restarts),
    ]


class View(logging.Handler, abc.ABC):
    """Where events of the supervisor and its status are shown while it is entered."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @abc.abstractmethod
    def show(self, status: Status) -> None:
        """Takes the newest status."""


class Lines(View):
    """A line an event, and one when all is ready: for pipes and files."""

    _settled = False

    def emit(self, record: logging.LogRecord) -> None:
        """Of `logging.Handler`."""
        self._print(record.created, record.getMessage())

    def show(self, status: Status) -> None:
        """Says so when all has become ready."""
        if status.is_settled and not self._settled:
            self._print(time.time(), f"all is ready at {status.url}/v1")
        self._settled = status.is_settled

    def _print(self, when: float, text: str) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(when))
        with contextlib.suppress(OSError):  # nobody reads it any more
            self.console.print(f"{clock} {text}", markup=False, soft_wrap=True)


class Screen(View):
    """Keeps the status and the last events on a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._status: Status | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()

    def emit(self, record: logging.LogRecord) -> None:
        """Of `logging.Handler`: shows an event."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        self._events.append(f"{clock} {record.getMessage()}")
        self._refresh()

    def show(self, status: Status) -> None:
        """Shows how things are now."""
        self._status = status
        self._refresh()

    def _refresh(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.update(Group(*self._body()), refresh=True)

    def _body(self) -> list[RenderableType]:
        events = [Text(event, "dim") for event in self._events]
        if self._status is None:
            return [*events]
        title = Text.assemble(("Pagelet ", "bold"), f"at {self._status.url}/v1", "   ")
        title.append("Ctrl-C drains and ends", "dim")
        return [title, Text(), overview(self._status), Text(), *events]
