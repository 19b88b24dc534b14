"""`pagelet bench compare` as a person types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagelet.bench.cli import app


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--peer", "other"], "no peer 'other'"),
        (["--workload", "other"], "no workload 'other'"),
        (["--peer", "vllm"], "not installed: vllm; --install installs"),
        (["--peer-dir", "vllm"], "is not NAME=DIR"),
        (["no-such-model", "--peer", "pagelet"], "no such file or folder"),
    ],
)
def test_an_error_says_what_to_give(arguments: list[str], reason: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", "--cache-dir", str(tmp_path), *arguments])
    assert result.exit_code == 1
    assert reason in " ".join(result.output.split())


def test_two_servers_are_compared_written_and_drawn(fake: Path, tmp_path: Path) -> None:
    table, figures, image = (tmp_path / "new" / name for name in ("t.md", "f.json", "p.png"))
    result = CliRunner().invoke(
        app,
        [
            *("compare", "--peer", "fake:a", "--peer", "fake:b", "--workload", "prefix-hit"),
            *("--rounds", "1", "--install", "--cache-dir", str(tmp_path)),
            *("--markdown", str(table), "--json", str(figures), "--plot", str(image)),
        ],
    )
    assert result.exit_code == 0, result.output
    rows = [line.split(" | ")[1:3] for line in table.read_text().splitlines()[2:]]
    assert rows == [
        [f"TTFT p50, {label}, ms", peer]
        for label in ("hit", "cold")
        for peer in ("fake:a", "fake:b")
    ]
    assert "failed" not in table.read_text()
    written = json.loads(figures.read_text())
    assert written["peers"] == {"fake:a": "fake 1.0", "fake:b": "fake 1.0"}
    for found in written["measurements"]:
        assert found["figures"]["completed"] == 8
        assert found["figures"]["total_cached_tokens"] >= 4 * (1024 - 16)
    assert image.read_bytes().startswith(b"\x89PNG")
