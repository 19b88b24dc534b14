"""Launching Triton kernels, or noting what would be launched.

A file `kernels/OP/triton.py` holds kernels (`@triton.jit`), functions of the operation's signature
that launch them by `launch`, and `examples()`, from which `compile.py` compiles them ahead of time
for every architecture. For the rules that its kernels keep, see `docs/kernels.md`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

from pagelet.kernels.gpu.architectures import ARCHITECTURES, Architecture, of_device

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run on CPU tensors in Triton's interpreter: `TRITON_INTERPRET=1` was in the
environment when this was imported. Pass it to kernels as the constexpr `UPCAST`: the interpreter
keeps bfloat16 as integers and computes nonsense with them, so that every operand of arithmetic and
of `tl.dot` must be cast to float32 first (loads, stores and casts are right)."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel with the arguments of one launch."""

    kernel: Any  # triton.JITFunction
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Example:
    """A call of an operation as models make it, on tensors without memory (`fake`)."""

    name: str
    """What is compiled: shape and element types, for people."""
    call: Callable[[], object]


@dataclasses.dataclass
class _Recording:
    architecture: Architecture
    launches: list[Launch]


_recording: _Recording | None = None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
    """kernel[grid](*args, **kwargs), if the grid isn't empty.

    `kwargs` are constexprs and Triton's options (num_warps, num_stages). Sizes that differ from
    step to step must be in the kernel's `do_not_specialize`, or each kind of value (one, a multiple
    of 16, others) would compile anew while a request waits. Raises RuntimeError for tensors of the
    CPU outside of the interpreter.
    """
    if _recording is not None:
        _recording.launches.append(Launch(kernel, args, kwargs))
        return
    if not INTERPRETED and _first_tensor(args).device.type == "cpu":
        raise RuntimeError(
            "a Triton kernel got tensors of the CPU. To run it in Triton's interpreter, set "
            "TRITON_INTERPRET=1 when the process starts"
        )
    if all(grid):
        kernel[grid](*args, **kwargs)


def architecture(device: torch.device) -> Architecture:
    """What to choose launch settings by. In the interpreter it is sm_80."""
    if _recording is not None:
        return _recording.architecture
    if device.type == "cpu":
        return ARCHITECTURES["sm_80"]
    return _of_device(device)


_of_device = functools.cache(of_device)


@contextlib.contextmanager
def recording(target: Architecture) -> Iterator[list[Launch]]:
    """Until it ends, `launch` adds to the list in place of launching, and `architecture` is
    `target`."""
    global _recording
    assert _recording is None
    _recording = _Recording(target, [])
    try:
        yield _recording.launches
    finally:
        _recording = None


def fake(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without memory, for examples. Reading a value of it on the host is an error, so an
    example also shows that its operation doesn't wait for the device."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _first_tensor(args: tuple[Any, ...]) -> torch.Tensor:
    return next(arg for arg in args if isinstance(arg, torch.Tensor))
