"""How much of the processors a thread gets beside others. Not for threads that take Python's lock
beside others of their process: those would wait for one that has no turn."""

import contextlib
import os


def run_when_idle(thread_id: int) -> None:
    """Leaves a thread what no other work wants (`SCHED_IDLE`: whatever wakes up takes its place at
    once), for good: without privileges there is no way back. One that has ended is passed over."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setscheduler(thread_id, os.SCHED_IDLE, os.sched_param(0))
