"""How long to wait before a process that died is started again, and when that is a crash loop."""

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
_HEALTHY_SECONDS = 60.0
_MAX_FAILURES_BEFORE_HEALTH = 5
_MAX_FAILURES = 10


def starting_again(seconds: float, failures: int) -> str:
    """What is done about a failure, for logs, which is where `pagelet ps` has it from."""
    return f"starting it again in {seconds:g} s (failure {failures} in a row)"


class CrashBackoff:
    """Delays double from 0.5 s to 30 s, and start anew after a run of 60 s in good health."""

    def __init__(self) -> None:
        self._failures = 0
        self._served = False

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    @property
    def is_crash_loop(self) -> bool:
        """Five failures in a row without ever having served, or ten after that: it is for whoever
        started the process to look into it."""
        return self._failures >= (_MAX_FAILURES if self._served else _MAX_FAILURES_BEFORE_HEALTH)

    def record_failure(self, healthy_seconds: float) -> float:
        """Seconds to wait before the next start.

        `healthy_seconds` is how long the process served before it died, 0 if it never did.
        """
        self._served = self._served or healthy_seconds > 0
        if healthy_seconds >= _HEALTHY_SECONDS:
            self._failures = 0
        self._failures += 1
        return min(_FIRST_SECONDS * 2.0 ** (self._failures - 1), _LONGEST_SECONDS)
