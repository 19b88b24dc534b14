"""Compiles every Triton kernel for every architecture, on a machine without a GPU, and says what
each takes.

    python -m pagelet.kernels.gpu.compile [--quick] [--only OP] [--docs docs/kernels.md]

What is compiled are the launches that the `examples()` of each `kernels/OP/triton.py` would make,
with the types, constants and settings that they have on that architecture. An error is: a kernel
that does not compile, takes more shared memory than a block may have, spills registers, or has a
product of matrices without matrix instructions. `--quick` compiles one example a kernel, and one
of float32, which has settings of its own; `--docs` writes the table into a page, between its two
markers.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from pagelet.kernels.gpu import launch
from pagelet.kernels.gpu.architectures import ARCHITECTURES, Architecture

KERNELS = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- compiled kernels: begin -->", "<!-- compiled kernels: end -->"

_MATRIX_INSTRUCTION = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_s?mfma)\w*")
# A product that a matrix unit can do: of 16-bit or 8-bit elements. (float32 is computed exactly.)
_NARROW_DOT = re.compile(r"tt\.dot(?:_scaled)? .*: tensor<[0-9x]+x(?:f16|bf16|i8|f8\w+)>")


@dataclasses.dataclass(frozen=True)
class Report:
    """What one compiled launch takes."""

    kernel: str
    example: str
    architecture: str
    registers: int = 0  # a thread; on AMD vector registers
    shared: int = 0  # bytes a block
    matrix: str = ""
    """The matrix instruction, if it has one."""
    problems: tuple[str, ...] = ()


def operations() -> list[str]:
    """The operations that have Triton kernels."""
    return sorted(path.parent.name for path in KERNELS.glob("*/triton.py"))


def compile_operation(operation: str, name: str, *, quick: bool) -> list[Report]:
    """Compiles what the examples of an operation launch on the architecture of that name."""
    module = importlib.import_module(f"pagelet.kernels.{operation}.triton")
    architecture = ARCHITECTURES[name]
    reports = []
    seen = set()
    for example in module.examples():
        with launch.recording(architecture) as launches:
            example.call()
        assert launches, f"{operation}: {example.name} launches nothing"
        for one in launches:
            kernel = one.kernel.__name__
            kind = (kernel, one.args[0].dtype == torch.float32 if quick else example.name)
            if kind not in seen:
                seen.add(kind)
                reports.append(_compile(one, kernel, example.name, architecture))
    return reports


def _compile(one: launch.Launch, kernel: str, example: str, architecture: Architecture) -> Report:
    report = Report(kernel, example, architecture.name)
    target = GPUTarget(architecture.backend, architecture.arch, architecture.warp_size)
    backend = make_backend(target)
    # The runtime's own steps from arguments to a specialised signature.
    function = one.kernel
    bind = create_function_from_signature(function.signature, function.params, backend)
    try:
        bound, specialization, options = bind(*one.args, **one.kwargs)
        options, signature, constants, attributes = function._pack_args(
            backend, one.kwargs, bound, specialization, options
        )
        source = ASTSource(function, signature, constants, attributes)
        compiled = triton.compile(source, target=target, options=options.__dict__)
    except Exception as error:
        return dataclasses.replace(report, problems=(f"does not compile: {error}",))
    assembly = compiled.asm
    problems = []
    shared = compiled.metadata.shared
    if shared > architecture.shared_bytes:
        problems.append(f"takes {shared} B of shared memory of {architecture.shared_bytes}")
    if architecture.is_nvidia:
        text = assembly["ptx"]
        registers, spilled = _cubin_resources(assembly["cubin"])
    else:
        text = assembly["amdgcn"]
        registers = _metadata(text, "vgpr_count")
        spilled = _metadata(text, "private_segment_fixed_size")
    if spilled:
        problems.append(f"spills {spilled} B a thread")
    found = _MATRIX_INSTRUCTION.search(text)
    if _NARROW_DOT.search(assembly["ttir"]) and found is None:
        problems.append("has a product of matrices without matrix instructions")
    if one.kwargs.get("enable_fp_fusion") is False and "fma.rn.f32" in assembly.get("ptx", ""):
        problems.append("fuses products and sums, which it must not")
    return dataclasses.replace(
        report,
        registers=registers,
        shared=shared,
        matrix=found[1] if found else "",
        problems=tuple(problems),
    )


def _cubin_resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of its stack and local memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", printed)}
    return usage["REG"], usage["STACK"] + usage["LOCAL"]


def _metadata(assembly: str, name: str) -> int:
    found = re.search(rf"\.{name}:\s+(\d+)", assembly)
    assert found, name
    return int(found[1])


def compile_all(chosen: Iterable[str], *, quick: bool, jobs: int) -> Iterator[Report]:
    """Compiles the operations for all architectures, in as many processes as `jobs`."""
    units = [(operation, name) for operation in chosen for name in ARCHITECTURES]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [
            pool.submit(compile_operation, operation, name, quick=quick)
            for operation, name in units
        ]
        for future in futures:
            yield from future.result()


def table(reports: Iterable[Report]) -> str:
    """A Markdown table: registers and shared memory of each kernel on each architecture."""
    cells: dict[tuple[str, str], dict[str, Report]] = {}
    for report in reports:
        cells.setdefault((report.kernel, report.example), {})[report.architecture] = report
    lines = [
        f"| kernel | example | {' | '.join(ARCHITECTURES)} |",
        f"| --- | --- |{' --- |' * len(ARCHITECTURES)}",
    ]
    for (kernel, example), by_architecture in cells.items():
        # Some launch a kernel on large GPUs alone.
        row = [_cell(by_architecture.get(name)) for name in ARCHITECTURES]
        lines.append(f"| `{kernel}` | {example} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _cell(report: Report | None) -> str:
    if report is None:
        return "-"
    shared = f"{report.shared / 1024:.3g}K" if report.shared else "0"
    return f"{report.registers} / {shared}" + (f" {report.matrix}" if report.matrix else "")


def write_docs(page: Path, content: str) -> None:
    """Replaces what stands between the page's markers."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{page} has no {BEGIN}"
    assert end, f"{page} has no {END}"
    page.write_text(f"{before}{begin}\n\n{content}\n{end}{after}")


def main(argv: list[str] | None = None) -> int:
    """Compiles, prints, and returns 1 if a kernel has a problem."""
    parser = argparse.ArgumentParser(description="Compile the Triton kernels ahead of time.")
    parser.add_argument("--quick", action="store_true", help="one example a kernel and width")
    parser.add_argument("--only", metavar="OP", action="append", choices=operations())
    parser.add_argument("--docs", type=Path, help="the page to write the table into")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args(argv)
    if launch.INTERPRETED:
        parser.error("unset TRITON_INTERPRET: what is interpreted cannot be compiled")
    if arguments.docs and (arguments.quick or arguments.only):
        parser.error("--docs needs all examples of all operations")
    chosen = arguments.only or operations()
    reports = []
    failed = 0
    for report in compile_all(chosen, quick=arguments.quick, jobs=arguments.jobs):
        reports.append(report)
        print(f"{report.architecture} {report.kernel} ({report.example}): {_cell(report)}")
        for problem in report.problems:
            failed += 1
            print(f"  PROBLEM: {problem}")
    if arguments.docs and not failed:
        write_docs(arguments.docs, table(reports))
    print(f"{len(reports)} compiled, {failed} problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
