"""`make gpu-check`: what of the GPU path holds on this machine, in under 8 minutes."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pagelet.bench.gpu_check.check import Check, Part, run_part, run_parts
from pagelet.bench.gpu_check.part import Device
from pagelet.bench.gpu_check.report import update
from pagelet.bench.roofline.presets import PRESETS

_SECONDS = 430.0
"""Of all parts together; each has its own bound, too."""
_LIMITS = {
    "kernels": 170.0,
    "graphs": 130.0,
    "collectives": 60.0,
    "throughput": 140.0,
    "memory": 90.0,
}
_SILENCE = 60.0
"""Of a kernel that is compiled and compared."""
_FACTS_SECONDS = 60.0


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if all passed, 1 if something failed or was not run, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--model", default="qwen2.5-3b", choices=sorted(PRESETS))
    parser.add_argument("--output", type=Path, default=Path("docs/gpu-checks.md"))
    parser.add_argument(
        "--only", action="append", choices=sorted(_LIMITS), help="a part; may be repeated"
    )
    options = parser.parse_args(arguments)
    if torch.version.hip or not torch.cuda.is_available():
        print(
            "gpu-check: torch sees no CUDA GPU here, so that there is nothing to see; run it on a "
            "machine with one (`pagelet doctor` says what is missing). Nothing was written",
            file=sys.stderr,
        )
        return 2
    wanted = [name for name in _LIMITS if not options.only or name in options.only]
    return check_machine("cuda", options.model, wanted, options.output)


def check_machine(device: Device, model: str, wanted: Sequence[str], output: Path) -> int:
    """Runs the parts of these names, and writes what they find as it comes. The exit code."""
    about = list(run_part(_part("facts", device, model), _FACTS_SECONDS))
    facts = {check.name: check.words for check in about if check.status == "passed"}
    if len(facts) < len(about) or "device" not in facts:
        said = "; ".join(check.words for check in about if check.status != "passed")
        print(f"gpu-check: the device cannot be used: {said}", file=sys.stderr)
        return 2
    name = facts.pop("device")
    before = output.read_text() if output.is_file() else ""
    parts = [_part(name, device, model) for name in wanted]
    found: list[Check] = []

    def write(done: int) -> None:
        later = [
            Check(part.name, "not run", "the run was ended before it") for part in parts[done:]
        ]
        output.write_text(update(before, name, facts, [*found, *later]))

    write(0)
    for number, check in run_parts(parts, _SECONDS):
        print(f"{parts[number].name}: {check.name}: {check.status}: {check.words}", flush=True)
        found.append(check)
        write(number + 1)
    print(f"wrote {output}")
    return 0 if all(check.status == "passed" for check in found) else 1


def _part(name: str, device: Device, model: str) -> Part:
    program = (sys.executable, "-m", "pagelet.bench.gpu_check.part", name, device, model)
    if name == "kernels":
        return Part(name, program, _LIMITS[name], silence=_SILENCE, restarts=True)
    return Part(name, program, _LIMITS.get(name, _FACTS_SECONDS))


if __name__ == "__main__":
    raise SystemExit(main())
