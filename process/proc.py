"""Processes that never outlive their parent, and groups that end as one.

Two safeguards for a child: the kernel's parent-death signal (Linux), and, since the parent may
die before the child asks for it, a look at the parent's pid afterwards. The end of the child's
socket is a third, which every reader of frames has anyway.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_WATCH_SECONDS = 0.5


def set_parent_death_signal(expected_parent_pid: int) -> None:
    """Makes this process die by SIGKILL as soon as its parent does.

    `expected_parent_pid` is the parent's own pid as it was before it started this process; if the
    parent is no longer that, it died already, and this process exits at once. Call it from the
    main thread, early. Linux ties the signal to the parent's *thread* that started the child, so
    a parent starts children from a thread that lives as long as they shall. Other systems get a
    thread that watches the parent's pid.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    else:
        threading.Thread(target=_watch_parent, args=(expected_parent_pid,), daemon=True).start()
    if os.getppid() != expected_parent_pid:
        os._exit(1)


def kill_group(pgid: int, sig: int = signal.SIGKILL) -> None:
    """Sends a signal to every process of a group; a group that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, sig)


def describe_exit(returncode: int) -> str:
    """A `subprocess` return code in words: "exit code 1", "signal SIGKILL"."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


def _watch_parent(expected_parent_pid: int) -> None:
    while os.getppid() == expected_parent_pid:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
