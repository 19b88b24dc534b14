"""Files for this user alone, whatever folder they are in."""

import os


def private(path: str, flags: int) -> int:
    """For `open(..., opener=private)`: nobody else can read a file that it makes."""
    return os.open(path, flags, 0o600)
