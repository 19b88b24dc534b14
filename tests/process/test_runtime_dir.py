"""The runtime directory of a supervisor that ends, and of one that is killed."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pagelet.process.runtime_dir import RuntimeDir


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_is_private_and_goes_away() -> None:
    runtime = RuntimeDir()
    assert runtime.path.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(runtime.file("s" * 40))
    runtime.close()
    assert not runtime.path.exists()


def test_clears_up_after_a_killed_supervisor_only(tmp_path: Path) -> None:
    code = f"""
import tempfile, time
tempfile.tempdir = {str(tmp_path)!r}
from pagelet.process.runtime_dir import RuntimeDir
runtime = RuntimeDir()
print(runtime.path, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        abandoned = Path(process.stdout.readline().strip())
        living = RuntimeDir()
        assert abandoned.exists()
        process.kill()
    last = RuntimeDir()
    assert not abandoned.exists()
    assert living.path.exists()
    living.close()
    last.close()
