"""Log files that stay small, and reading them while they are written."""

import collections
import contextlib
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from pagelet.process.private import private

_MOST_BYTES = 10 << 20
_KEPT_FILES = 3
_TAIL_LINES = 30
_LONGEST_LINE = 1 << 20
"""In bytes; what goes on after that is another line."""
_POLL_SECONDS = 0.25
SUFFIX = ".log"

log = logging.getLogger(__name__)


class UnreadableLog(Exception):
    """The system does not let a log be read; the message says which."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"the log {path} cannot be read: {error.strerror or error}; to see others, name them"
        )


class RotatingHandler(logging.handlers.RotatingFileHandler):
    """Writes a log that at 10 MiB becomes `NAME.log.1`, which becomes `NAME.log.2`, and so on, for
    this user alone.

    Where it cannot be written, on a full disk for instance, it says so once, and loses lines until
    it can be.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, maxBytes=_MOST_BYTES, backupCount=_KEPT_FILES, encoding="utf-8", delay=True
        )
        self._fails = False  # whether the last line was lost
        self._is_said = False
        try:
            self.stream = self._open()
        except OSError as error:
            self._say(error)

    def emit(self, record: logging.LogRecord) -> None:
        """Of `logging.Handler`."""
        if self.stream is not None and not os.path.exists(self.baseFilename):
            with contextlib.suppress(OSError):
                self.stream.close()
            self.stream = None  # it was removed: another one is opened below
        self._fails = False
        super().emit(record)
        if self._is_said and not self._fails:
            self._is_said = False
            log.info("%s can be written again", self.baseFilename)

    def handleError(self, record: logging.LogRecord) -> None:
        """Of `logging.Handler`: called while the error is handled."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._fails = True
        if self.stream is not None and self.stream.closed:
            self.stream = None  # it failed in a rotation; the next line opens it again
        self._say(error)

    def close(self) -> None:
        """Ends the file."""
        with contextlib.suppress(OSError):  # what the disk has no room for
            super().close()

    def _open(self) -> TextIOWrapper:
        return cast(
            TextIOWrapper,
            open(self.baseFilename, self.mode, encoding=self.encoding, opener=private),
        )

    def _say(self, error: OSError) -> None:
        if not self._is_said:
            self._is_said = True  # first: this line may be for the same log
            log.error(
                "%s cannot be written: %s; its lines are lost until it can be",
                self.baseFilename,
                error.strerror or error,
            )


class RotatingLog:
    """What a process writes, line by line, in a log of its own."""

    def __init__(self, path: Path) -> None:
        self._handler = RotatingHandler(path)
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._partial = b""

    @property
    def tail(self) -> list[str]:
        """The last lines since `forget`."""
        return list(self._tail)

    def forget(self) -> None:
        """Empties `tail`: another process begins to write."""
        self.flush()
        self._tail.clear()

    def write(self, data: bytes) -> None:
        """Appends output as it comes, in pieces of any size."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._write_line(line.decode(errors="replace"))
        if len(self._partial) > _LONGEST_LINE:
            self.flush()

    def flush(self) -> None:
        """Ends a line that was begun."""
        if self._partial:
            self.write(b"\n")

    def close(self) -> None:
        """Ends the file."""
        self.flush()
        self._handler.close()

    def _write_line(self, line: str) -> None:
        self._tail.append(line)
        self._handler.emit(logging.makeLogRecord({"msg": line}))


def files_of(path: Path) -> list[Path]:
    """A log, and what was rotated away of it, which need not exist: the newest first."""
    return [path, *(path.with_name(f"{path.name}.{n + 1}") for n in range(_KEPT_FILES))]


def read_last(path: Path, count: int) -> list[str]:
    """The last lines of a log; of its rotated predecessor, too, if its own are too few. Raises
    `UnreadableLog`."""
    lines: list[str] = []
    for file in files_of(path)[:2]:
        if len(lines) < count and (opened := _open(file)) is not None:
            with opened, _reading(file):
                all_lines = [line.rstrip("\n") for line in opened]
                lines = all_lines[-(count - len(lines)) :] + lines
    return lines[-count:] if count else []


class Follower:
    """Lines that are added to some logs from now on, through rotations, and new logs' lines.
    Raises `UnreadableLog`."""

    def __init__(self, find: Callable[[], Sequence[Path]]) -> None:
        self._find = find
        self._open: dict[Path, IO[str]] = {}
        for path in find():
            if self._begin(path):
                self._open[path].seek(0, os.SEEK_END)

    def poll(self) -> Iterator[tuple[Path, str]]:
        """What came since the last call."""
        found = self._find()
        for path in self._open.keys() - set(found):
            self._open.pop(path).close()
        for path in found:
            if path not in self._open and not self._begin(path):
                continue
            yield from self._lines(path)
            if _was_replaced(path, self._open[path]):
                yield from self._lines(path)  # written before the rotation
                self._open.pop(path).close()
                if self._begin(path):
                    yield from self._lines(path)

    def follow(self) -> Iterator[tuple[Path, str]]:
        """`poll` for ever."""
        while True:
            yield from self.poll()
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Closes the files."""
        for file in self._open.values():
            file.close()

    def _begin(self, path: Path) -> bool:
        """Whether there is such a log."""
        file = _open(path)
        if file is not None:
            self._open[path] = file
        return file is not None

    def _lines(self, path: Path) -> Iterator[tuple[Path, str]]:
        file = self._open[path]
        while True:
            with _reading(path):
                position = file.tell()
                line = file.readline()
                if not line.endswith("\n"):  # not written to its end yet
                    file.seek(position)
                    return
            yield path, line.rstrip("\n")


def _open(path: Path) -> IO[str] | None:
    """None if it is gone meanwhile."""
    with _reading(path), contextlib.suppress(FileNotFoundError):
        return path.open(encoding="utf-8", errors="replace")
    return None


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableLog(path, error) from None


def _was_replaced(path: Path, file: IO[str]) -> bool:
    try:
        return path.stat().st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False
