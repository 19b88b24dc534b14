"""Logs as people and as collectors read them."""

import json
import subprocess
import sys

import pytest


def run(code: str, log_format: str, level: str = "info") -> str:
    setup = f"""
import logging
from pagelet.process.logs import configure_logging
configure_logging({level!r}, {log_format!r}, "engine core 0")
log = logging.getLogger("pagelet.engine.core")
"""
    result = subprocess.run(
        [sys.executable, "-c", setup + code], capture_output=True, text=True, timeout=60
    )
    assert result.stdout == ""
    return result.stderr


def test_text_has_time_level_process_and_extra_fields() -> None:
    line = run("log.info('step %d', 7, extra={'request_id': 'abc'})", "text")
    assert line.endswith("Z INFO [engine core 0] step 7 request_id=abc\n")


def test_json_is_one_object_a_line() -> None:
    code = "log.warning('two\\nlines', extra={'seconds': 0.5, 'path': 'a\"b'})"
    (line,) = run(code, "json").splitlines()
    fields = json.loads(line)
    assert fields["level"] == "warning"
    assert fields["process"] == "engine core 0"
    assert fields["message"] == "two\nlines"
    assert (fields["seconds"], fields["path"]) == (0.5, 'a"b')


def test_an_extra_field_cannot_replace_a_standard_one() -> None:
    fields = json.loads(run("log.info('real', extra={'level': 'x', 'pid': 'x'})", "json"))
    assert fields["level"] == "info"
    assert isinstance(fields["pid"], int)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_uncaught_error_is_logged_with_its_traceback(log_format: str) -> None:
    output = run("raise ValueError('why')", log_format)
    text = json.loads(output)["exception"] if log_format == "json" else output
    assert "Traceback" in text
    assert "ValueError: why" in text


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", ["d", "i", "w"]), ("info", ["i", "w"]), ("warning", ["w"]), ("error", [])],
)
def test_levels(level: str, expected: list[str]) -> None:
    lines = run("log.debug('d'); log.info('i'); log.warning('w')", "text", level).splitlines()
    assert [line[-1] for line in lines] == expected


def test_libraries_speak_from_warning_on() -> None:
    code = "logging.getLogger('lib').info('quiet'); logging.getLogger('lib').warning('loud')"
    (line,) = run(code, "text").splitlines()
    assert line.endswith("loud")
