"""Every Triton kernel compiles for every architecture, on a machine without a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pagelet.kernels.gpu.architectures import ARCHITECTURES, _of_capability, of_device
from pagelet.kernels.gpu.tile import Tile

PAGE = Path(__file__).parents[3] / "docs" / "kernels.md"


def compile_kernels(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what is interpreted, as everywhere in the tests, is not compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pagelet.kernels.gpu.compile", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_all_kernels_compile_and_are_in_the_table() -> None:
    result = compile_kernels("--quick", "--jobs", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    compiled = set(re.findall(r"^(\S+) (\w+) \(", result.stdout, re.MULTILINE))
    kernels = {kernel for _, kernel in compiled}
    assert compiled == {(name, kernel) for name in ARCHITECTURES for kernel in kernels}
    in_table = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert in_table == kernels, "run python -m pagelet.kernels.gpu.compile --docs docs/kernels.md"


SPECIALIZED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature
import torch
from pagelet.kernels.gpu import launch
from pagelet.kernels.gpu.architectures import ARCHITECTURES
from pagelet.kernels.paged_attention.triton import paged_attention

backend = make_backend(GPUTarget("cuda", 90, 32))
fake, bf16, int32 = launch.fake, torch.bfloat16, torch.int32
for tokens in (1, 9):
    for context in (768, 4096, 4112, 50000):
        with launch.recording(ARCHITECTURES["sm_90"]) as launches:
            paged_attention(
                fake(tokens, 32, 128, dtype=bf16), fake(2, 9, 8, 16, 128, dtype=bf16),
                fake(2, dtype=int32), fake(1, dtype=int32), fake(1, -(-context // 16), dtype=int32),
                max_query_len=tokens, max_seq_len=context, query_lens_cpu=[], seq_lens_cpu=[],
                scale=1.0,
            )
        for one in launches:
            kernel = one.kernel
            bind = create_function_from_signature(kernel.signature, kernel.params, backend)
            print(kernel.__name__, bind(*one.args, **one.kwargs)[1:])
"""


def test_attention_is_not_compiled_anew_as_contexts_grow() -> None:
    """Which would fall on a request's latency."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", SPECIALIZED]
    printed = subprocess.check_output(command, env=environment, text=True).splitlines()
    names = [line.split()[0] for line in printed]
    assert sorted(set(names)) == [
        "merge_splits_kernel",
        "paged_attention_kernel",
        "split_decode_kernel",
    ]
    assert len(printed) == 12
    assert len(set(printed)) == 3


def test_a_gpu_gets_the_settings_of_its_generation() -> None:
    assert _of_capability(8, 6, "A10").name == "sm_80"
    assert _of_capability(9, 0, "H200").name == "sm_90"
    assert _of_capability(10, 3, "B300").name == "sm_100"
    with pytest.raises(RuntimeError, match=r"T4 has compute capability 7\.5; the kernels need 8"):
        _of_capability(7, 5, "T4")


def test_a_gpu_has_its_own_processors_and_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    a10 = SimpleNamespace(
        name="A10",
        major=8,
        minor=6,
        multi_processor_count=72,
        shared_memory_per_block_optin=99 << 10,
    )
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: a10)
    found = of_device(torch.device("cuda"))
    assert (found.name, found.processors, found.shared_bytes) == ("sm_80", 72, 99 << 10)
    tile = Tile(128, 64, 64, 8, 4)
    assert tile.fitted(found, 40 << 10).stages == 2
    assert tile.fitted(ARCHITECTURES["sm_80"], 40 << 10).stages == 4
    a10.shared_memory_per_block_optin = 1 << 20
    assert of_device(torch.device("cuda")).shared_bytes == ARCHITECTURES["sm_80"].shared_bytes


def test_outside_of_the_interpreter_tensors_of_the_cpu_are_an_error() -> None:
    code = (
        "import torch; from pagelet.kernels.rms_norm import rms_norm; "
        "rms_norm.implementations['triton'](torch.ones(2, 8), torch.ones(8), 1e-6)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "set TRITON_INTERPRET=1 when the process starts" in result.stderr


def test_a_process_that_calls_no_kernel_does_not_import_triton() -> None:
    code = "import sys, pagelet.kernels.rms_norm; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
