"""What a process and its children use is counted together."""

import os
import subprocess
import sys

from pagelet.bench.process_usage import usage_of_tree

HOLD = "data = bytearray(64 << 20); print(len(data), flush=True); import sys; sys.stdin.read()"
SPAWN = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"


def test_children_count() -> None:
    alone = usage_of_tree(os.getpid())
    assert alone.resident_bytes > 10 << 20
    assert alone.cpu_seconds > 0
    with subprocess.Popen(
        [sys.executable, "-c", SPAWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert usage_of_tree(child.pid).resident_bytes > 64 << 20
        assert usage_of_tree(os.getpid()).resident_bytes > alone.resident_bytes + (64 << 20)
        child.communicate()


def test_a_process_that_is_gone_uses_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert usage_of_tree(child.pid).resident_bytes == 0
