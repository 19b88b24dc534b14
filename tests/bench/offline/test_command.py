"""`pagelet bench engine` on a small real model."""

import json
from pathlib import Path

from typer.testing import CliRunner

from pagelet.bench.cli import app


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["engine", *arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_prefill_and_decode_beside_the_machines_limits(tmp_path: Path) -> None:
    path = tmp_path / "new" / "engine.json"
    output = run(
        *("--load-format", "dummy", "--dtype", "float32", "--batch", "1", "--batch", "2"),
        *("--prompt-len", "8", "--decode-steps", "2", "--json", str(path)),
    )
    assert "this machine reads" in output
    result = json.loads(path.read_text())
    assert result["kind"] == "float32"
    assert result["limits"]["read_bytes"] > 1e8
    assert {"float32", "bfloat16"} <= result["limits"]["gemm_flops"].keys()
    figures = result["figures"]
    assert [(figure["phase"], figure["batch"]) for figure in figures] == [
        ("prefill", 1),
        ("decode", 1),
        ("prefill", 2),
        ("decode", 2),
    ]
    for figure in figures:
        assert figure["tokens_per_second"] > 0
        assert figure["flops"] > figure["tokens_per_second"]
        if figure["phase"] == "decode":
            # a step brings a token of every request
            steps_per_second = figure["tokens_per_second"] / figure["batch"]
            assert abs(figure["step_ms"] * steps_per_second / 1e3 - 1) < 1e-9
            assert figure["read_bytes"] / steps_per_second > 4 * 134_479_872


def test_what_cannot_be_loaded_is_said() -> None:
    assert "no such file or folder" in run("nowhere", code=1)
