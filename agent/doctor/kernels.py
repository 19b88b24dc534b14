"""The CPU library: which instruction set and how many threads it would run on, or why it cannot."""

import subprocess
import sys

from pagelet.agent.doctor.checks import Finding


def check_kernels() -> Finding:
    """Asks in a process of its own, as loading the library starts threads; compiles nothing."""
    asked = subprocess.run(
        [sys.executable, "-P", "-m", "pagelet.kernels.cpu", "--no-compile"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lines = (asked.stdout or asked.stderr).strip().splitlines() or ["no answer"]
    if asked.returncode == 0:
        return Finding(name="kernels", status="ok", summary=lines[-1])
    return Finding(
        name="kernels",
        status="warn",
        summary=lines[0] if asked.stdout else lines[-1],
        advice="models run on a CPU all the same, but several times slower",
    )
