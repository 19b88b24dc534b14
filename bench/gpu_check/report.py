"""`docs/gpu-checks.md`: what was seen on which GPU, a section for each kind."""

import datetime
import importlib.metadata
import re
from collections.abc import Mapping, Sequence

from pagelet.bench.gpu_check.check import Check

_HEAD = """\
# Seen on GPUs

Written by `make gpu-check` on a machine with a GPU, and never by hand: a section for each kind of
GPU, from its last run.
"""


def update(document: str, gpu: str, facts: Mapping[str, str], checks: Sequence[Check]) -> str:
    """The document with this GPU's section in place of its last one."""
    sections = re.split(r"^## ", document, flags=re.MULTILINE)[1:]
    kept = [section for section in sections if section.partition("\n")[0] != gpu]
    texts = [*(f"## {section.rstrip()}\n" for section in kept), section(gpu, facts, checks)]
    return "\n".join([_HEAD, *sorted(texts)])


def section(gpu: str, facts: Mapping[str, str], checks: Sequence[Check]) -> str:
    """One run."""
    counts = {
        status: sum(check.status == status for check in checks)
        for status in ("passed", "failed", "not run")
    }
    told = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    lines = [
        f"## {gpu}",
        "",
        f"{told}. " + "; ".join(f"{name} {value}" for name, value in facts.items()) + ".",
        "",
        "| check | result | what was seen |",
        "| --- | --- | --- |",
        *(
            f"| {check.name} | {check.status} | {check.words.replace('|', '/')} |"
            for check in checks
        ),
        "",
    ]
    return "\n".join(lines)


def versions(driver: str, cuda: str, nccl: str) -> dict[str, str]:
    """What a run depends on."""
    facts = {"date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")}
    facts |= {name: importlib.metadata.version(name) for name in ("pagelet", "torch", "triton")}
    return facts | {"driver": driver, "CUDA": cuda, "NCCL": nccl}
