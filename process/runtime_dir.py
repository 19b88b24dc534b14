"""A private directory for the unix sockets and other short-lived files of a process tree.

A supervisor that is killed cannot clear up, so each one holds a lock in its directory, and clears
up at its start whatever directories of the same user nobody holds any more.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "pagelet-"
_LOCK = "lock"
_MAX_SOCKET_PATH = 107
_LONGEST_NAME = 40


class RuntimeDir:
    """A directory that only this user can enter; `close` removes it."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(parent) + len(f"/{_PREFIX}12345678/") + _LONGEST_NAME > _MAX_SOCKET_PATH:
            parent = "/tmp"  # unix socket paths are short
        _clear_abandoned(Path(parent))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        unnamed = self.path / "new"
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _LOCK)  # only now can others see a lock, and it is held

    def file(self, name: str) -> str:
        """The path of a file or socket in it; `name` has at most 40 characters."""
        assert len(name) <= _LONGEST_NAME
        return str(self.path / name)

    def close(self) -> None:
        """Removes the directory and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _clear_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            if lock.parent.stat().st_uid != os.getuid():
                continue
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(fd)
