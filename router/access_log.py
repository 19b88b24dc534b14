"""One line a request: who, what, where, how long. Names and numbers, never keys or text."""

import logging
from typing import Final

from pagelet.router.record import RequestRecord

_log = logging.getLogger("pagelet.access")

_IF_ANY: Final = (
    *("tenant", "model", "pool", "prompt_tokens", "completion_tokens", "retries", "resumes"),
    *("error",),
)
_LONGEST_PATH: Final = 200


def write(record: RequestRecord) -> None:
    """Logs a request that is over."""
    if not _log.isEnabledFor(logging.INFO):
        return
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "trace_id": record.trace_id,
        "method": record.method,
        "path": ascii(record.path[:_LONGEST_PATH])[1:-1],
        "status": record.status,
        "seconds": _rounded(record.seconds or 0.0),
    }
    for name in _IF_ANY:
        if value := getattr(record, name):
            fields[name] = value
    if record.attempts:
        last = record.attempts[-1]
        fields["replica"] = last.replica_id
        fields["predicted_hit_tokens"] = last.predicted_hit_tokens
        fields["waited_seconds"] = _rounded(record.waited_seconds)
        fields["replica_seconds"] = _rounded(record.replica_seconds)
    if record.cached_tokens is not None:
        fields["cached_tokens"] = record.cached_tokens
    if record.overhead_seconds is not None:
        fields["overhead_seconds"] = _rounded(record.overhead_seconds)
    if record.ttft_seconds is not None:
        fields["ttft_seconds"] = _rounded(record.ttft_seconds)
    _log.info("request", extra=fields)


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
