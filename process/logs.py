"""Logs of every process of a replica: lines to stderr, for people or as JSON for collectors."""

import logging
import os
import sys
import time
from types import TracebackType

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encoder = msgspec.json.Encoder(enc_hook=str)


def configure_logging(level: str, log_format: str, process: str) -> None:
    """Sends this process's logs to stderr.

    `level` is "debug", "info", "warning" or "error"; `log_format` "text" or "json"; `process`
    names the writer, such as "engine core 0". Values given as `extra=` appear as fields in JSON
    and as `name=value` in text.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if level == "info" else level.upper())
    logging.getLogger("pagelet").setLevel(level.upper())
    sys.excepthook = _log_uncaught
    # What no line of ours shows, and costs more than the rest of it: who called, from which thread.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def fail(log: logging.Logger, message: str, exit_code: int, log_format: str) -> int:
    """Says why a process ends, in its log for machines or to who started it. Returns the code."""
    if log_format == "json":
        log.critical(message)
    else:
        print(f"Error: {message}", file=sys.stderr)
    return exit_code


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO [supervisor] text name=value`"""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_timestamp(record)} {record.levelname} [{self._process}] {record.getMessage()}"
        for name, value in _extras(record).items():
            line += f" {name}={value}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, process, pid, logger, message, then extra fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": os.getpid(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encoder.encode(_extras(record) | fields).decode()


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    logging.getLogger(__name__).critical("uncaught", exc_info=(kind, error, traceback))


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
