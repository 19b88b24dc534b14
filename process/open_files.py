"""How many files, and so connections, a process may have open."""

import resource
from typing import Final

_MOST: Final = 1 << 20


def raise_open_file_limit() -> None:
    """Each connection takes a file descriptor, and common soft limits are 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
