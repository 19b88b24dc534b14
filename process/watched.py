"""Files that are read again when they change, as mounted ConfigMaps and Secrets do."""

import time
from pathlib import Path

_Version = tuple[tuple[str, int, int, int], ...]


class WatchedPath:
    """A file, or a folder of files, and whether it changed since it was last asked about.

    Looks at names, change times, sizes and inodes, so it notices a file that was rewritten,
    replaced or made readable. Entries that begin with a dot are skipped: Kubernetes keeps the data
    of a mounted Secret behind such names and swaps a link to it.
    """

    def __init__(self, path: Path, check_every: float = 1.0) -> None:
        self.path = path
        self._check_every = check_every
        self._checked = float("-inf")
        self._version: _Version | None = None

    def changed(self, now: float | None = None) -> bool:
        """Whether to read it again; true the first time. Looks at most every `check_every`
        seconds, and a file that is gone counts as one more change."""
        now = time.monotonic() if now is None else now
        if now - self._checked < self._check_every:
            return False
        self._checked = now
        version = self._look()
        if version == self._version:
            return False
        # Taken before the file is read: what changes meanwhile is noticed the next time.
        self._version = version
        return True

    def files(self) -> list[Path]:
        """The file, or the folder's files by name. Raises `OSError`."""
        if not self.path.is_dir():
            return [self.path]
        entries = (entry for entry in self.path.iterdir() if not entry.name.startswith("."))
        return sorted(entry for entry in entries if entry.is_file())

    def _look(self) -> _Version:
        try:
            statuses = [(file.name, file.stat()) for file in self.files()]
        except OSError:
            return ()
        return tuple(
            (name, status.st_ctime_ns, status.st_size, status.st_ino) for name, status in statuses
        )
