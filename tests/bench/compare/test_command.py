"""`pagelet bench compare` refuses what cannot work before it starts anything."""

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
