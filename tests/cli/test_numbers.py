"""Numbers that no server can be started with: refused by the option's name, in one line."""

import pytest
from typer.testing import CliRunner

from pagelet.cli.main import app

HUGE = "9" * 30


def refusal(*arguments: str) -> str:
    """The last line, of which `pagelet up` shows a replica's."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    return str(result.output.splitlines()[-1])


@pytest.mark.parametrize(
    "option",
    ["--max-num-seqs", "--num-blocks", "--max-model-len", "--kv-cache-memory", "--cpu-memory"],
)
def test_a_whole_number_beyond_64_bits_is_refused(option: str) -> None:
    assert refusal("serve", "model", option, HUGE) == (
        f"Error: Invalid value for '{option}': the number is too large; at most "
        "9223372036854775807 can be meant"
    )


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--max-step-seconds", "--step-timeout"])
def test_a_number_that_is_not_finite_is_refused(option: str, value: str) -> None:
    assert refusal("serve", "model", option, value) == (
        f"Error: Invalid value for '{option}': {value} is not a finite number"
    )


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize("option", ["--max-step-seconds", "--step-timeout"])
def test_no_time_is_refused(option: str, value: str) -> None:
    assert refusal("serve", "model", option, value) == (
        f"Error: Invalid value for '{option}': {float(value)} is not more than 0"
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://", "'http://' is no URL of a server; write it as http://HOST:PORT or https://..."),
        ("http://a:99999", "Port out of range 0-65535"),
    ],
)
def test_a_replica_that_has_no_url_is_refused(url: str, words: str) -> None:
    assert refusal("router", "--replica", "http://a", "--replica", url) == (
        f"Error: Invalid value for --replica: {words}"
    )


def test_a_router_drains_for_a_finite_time() -> None:
    assert "inf is not a finite number" in refusal(
        "router", "--replica", "http://a", "--drain-timeout", "inf"
    )
