"""Where one `pagelet up` keeps its logs, and how the other commands find it.

`--state-dir`, or else `pagelet/` in `$XDG_STATE_HOME` (`~/.local/state`). The supervisor holds a
lock in it and writes where its control socket is; that lies in a directory of its own with a short
path, as unix sockets need.
"""

import contextlib
import errno
import fcntl
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from pagelet.local.log_files import SUFFIX, files_of
from pagelet.process.atomic import write_atomically
from pagelet.process.private import private

_LOOK_SECONDS = 0.5
"""Far longer than whoever looks whether the directory is held shares its lock."""
_START_UP_BYTES = 4096


class AlreadyRuns(Exception):
    """Another supervisor holds the directory."""


class UnusableStateDir(Exception):
    """The system refuses what must be read or written in it, or something else has its place; the
    message says what to change."""

    def __init__(self, path: Path, trouble: str, remedy: str = "") -> None:
        """`remedy` is what would help, too."""
        super().__init__(
            f"the state directory {path} cannot be used: {trouble}; "
            f"{f'{remedy}, or ' if remedy else ''}name another one with --state-dir"
        )


class Owner(msgspec.Struct, kw_only=True):
    """Who holds a state directory."""

    pid: int
    control: str
    """Path of the control socket."""
    file: str
    """The YAML file that is served, as an absolute path."""
    host: str
    """The address that the router listens on."""
    url: str
    """Of the router, without a path."""


def default_state_dir() -> Path:
    """Where the state is without `--state-dir`."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "pagelet"


class StateDir:
    """The directory's layout. Where it cannot be used, methods raise `UnusableStateDir`.

    It may be a folder of the user's with other things in it: none of them changes, nor does the
    folder itself, and what we write there is for this user alone by the modes of files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._held: int | None = None  # file descriptor of the lock while `hold` lasts

    def command(self, words: str) -> str:
        """A command of ours as it is to be typed to reach this directory."""
        if self.path == default_state_dir():
            return f"pagelet {words}"
        return f"pagelet {words} --state-dir {shlex.quote(str(self.path))}"

    def create(self) -> None:
        """Makes what is missing of it, for this user alone: logs may tell what is served."""
        with self._using():
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            self.logs.mkdir(0o700, exist_ok=True)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Is this process's until the end of the block, however that ends. Raises `AlreadyRuns`."""
        self._held = self._take()
        try:
            self._remove_owner()  # of one that was killed
            yield
            with contextlib.suppress(OSError):
                self._owner.unlink(missing_ok=True)
        finally:
            os.close(self._held)
            self._held = None

    def keep(self, owner: Owner) -> bool:
        """Within `hold`: makes again what was removed of it meanwhile, so that commands find its
        owner, and returns whether anything was. Raises `AlreadyRuns` while another one has it."""
        assert self._held is not None
        is_ours = self._is_lock(self._held)
        if is_ours and os.path.isfile(self._owner) and os.path.isdir(self.logs):
            return False
        if is_ours:
            self.create()
        elif self.is_held():
            raise AlreadyRuns
        else:
            lock = self._take()
            os.close(self._held)
            self._held = lock
        self.write_owner(owner)
        return True

    def is_held(self) -> bool:
        """Whether a supervisor lives."""
        with self._using():
            try:
                fd = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
            return False

    def write_owner(self, owner: Owner) -> None:
        """Tells the other commands where to find the supervisor."""
        with self._using():
            write_atomically(self._owner, msgspec.json.encode(owner))

    def open_start_up(self) -> IO[bytes]:
        """Where one that starts in the background says why it cannot: zeros, so that there is room
        for its words even where it finds the disk full."""
        self.create()
        with self._using():
            with contextlib.ExitStack() as if_it_fails:
                path = self.path / "start-up"
                file = if_it_fails.enter_context(open(path, "w+b", opener=private))
                file.write(bytes(_START_UP_BYTES))
                file.seek(0)
                if_it_fails.pop_all()
            return file

    def owner(self) -> Owner | None:
        """The supervisor that lives; None if there is none, or it has not come up yet."""
        if not self.is_held():
            return None
        with self._using():
            try:
                return msgspec.json.decode(self._owner.read_bytes(), type=Owner)
            except FileNotFoundError:
                return None
            except ValueError as error:  # msgspec's errors are some
                raise self._foreign_owner(str(error)) from None

    def log_path(self, name: str) -> Path:
        """A process's log."""
        return self.logs / f"{name}{SUFFIX}"

    def remove_log(self, name: str) -> None:
        """Removes a process's log, with what was rotated away."""
        for path in files_of(self.log_path(name)):
            with contextlib.suppress(OSError):  # one too many does no harm
                path.unlink()

    def log_paths(self) -> list[Path]:
        """All logs, by name, where `a-2` comes before `a-10`; without those that were rotated
        away."""
        with self._using():
            try:
                names = os.listdir(self.logs)  # unlike a glob, it says so if it may not look
            except FileNotFoundError:
                return []
        paths = [self.logs / name for name in names if name.endswith(SUFFIX)]
        return sorted(paths, key=_by_name_and_number)

    @property
    def _owner(self) -> Path:
        return self.path / "owner.json"

    @property
    def _lock(self) -> Path:
        return self.path / "lock"

    def _take(self) -> int:
        """Makes it, and returns the lock's file descriptor. Raises `AlreadyRuns`."""
        self.create()
        with self._using():
            fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with contextlib.ExitStack() as stack:
                stack.callback(os.close, fd)
                if not _locked(fd):
                    raise AlreadyRuns
                stack.pop_all()
        return fd

    def _remove_owner(self) -> None:
        """Removes what another supervisor of ours left, of whichever version, but nothing else."""
        with self._using():
            try:
                content = self._owner.read_bytes()
            except FileNotFoundError:
                return
            try:
                is_ours = not content or "control" in msgspec.json.decode(content, type=dict)
            except ValueError:
                is_ours = False
            if not is_ours:
                raise self._foreign_owner("it names no control socket")
            self._owner.unlink(missing_ok=True)

    def _foreign_owner(self, why: str) -> UnusableStateDir:
        return UnusableStateDir(
            self.path, f"its {self._owner.name} is none of `pagelet up`: {why}", "remove that file"
        )

    def _is_lock(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._lock.stat())
        except OSError:
            return False

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise UnusableStateDir(
                self.path,
                error.strerror or str(error),
                "free some space there" if is_full else "",
            ) from error


def _locked(fd: int) -> bool:
    """Takes the lock for this process, unless another one holds it."""
    until = time.monotonic() + _LOOK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        else:
            return True


def _by_name_and_number(path: Path) -> tuple[str, int]:
    name, _, number = path.stem.rpartition("-")
    return (name, int(number)) if number.isdecimal() else (path.stem, 0)
