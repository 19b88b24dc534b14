"""Files that are replaced in one step: whoever reads one sees all of a change or nothing."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces a file's content; by default it is readable for this user alone.

    What is being written has a name that begins with a dot, in the same folder. Raises `OSError`.
    """
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
    new.replace(path)
