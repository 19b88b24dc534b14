"""A GPU that is a fake, for replicas on machines that have none."""

import re
from pathlib import Path

from pagelet.engine.core.foreign_memory import ForeignMemory
from support.fleet import Command

GPU = "GPU-fake"


def pretend_foreign_memory(replica: Command, used: int) -> None:
    """Has a running replica tell that so many bytes of a GPU of that name are in use by others."""
    for pid in replica.processes("pagelet.engine.core.process"):
        maps = Path(f"/proc/{pid}/maps").read_text()
        (heartbeat,) = set(re.findall(r"(/\S+\.heartbeat)$", maps, re.MULTILINE))
        ForeignMemory(heartbeat, lambda: {GPU: used})
