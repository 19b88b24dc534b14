"""Where built programs, images and the folders of runs lie: outside of the repository."""

import os
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagelet-e2e"
"""Safe to delete whenever no cluster runs; the next run fills it again."""


def say(text: str) -> None:
    """Shows what goes on now; also where standard output is a file that someone follows."""
    print(f"==> {text}", flush=True)
