"""`docs/gpu-checks.md`: what was seen on which GPU, a section for each kind."""

import datetime
import importlib.metadata
import platform
import re
from collections.abc import Mapping, Sequence

import torch

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


def read_facts() -> dict[str, str]:
    """The name of the device, and what a run depends on. Raises RuntimeError if it cannot be
    used."""
    facts = {
        "device": platform.machine(),
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }
    facts |= {name: importlib.metadata.version(name) for name in ("pagelet", "triton")}
    facts["torch"] = str(torch.__version__)
    facts["Python"] = platform.python_version()
    if not torch.cuda.is_available():
        return facts
    torch.zeros(1, device="cuda").item()
    of_gpu = torch.cuda.get_device_properties(0)
    facts["device"] = of_gpu.name
    facts["compute capability"] = f"{of_gpu.major}.{of_gpu.minor}"
    facts["memory"] = f"{of_gpu.total_memory / 1e9:,.1f} GB"
    facts["GPUs"] = str(torch.cuda.device_count())
    facts["CUDA"] = str(torch.version.cuda)
    nccl: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    facts["NCCL"] = ".".join(map(str, nccl))
    facts["driver"] = _driver()
    return facts


def _driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return f"unknown ({error})"
