"""Operations recorded once and replayed from one call: the CPU's counterpart of a CUDA graph.

A decode step of a small model is some hundred operations of microseconds each, less than Python
takes to launch one. A program holds their arguments (fixed pointers into buffers that are reused
every step) and names the numbers that change: each operation's number of rows is one of the sizes
that `run` is given.
"""

import ctypes

import torch

from pagelet.kernels.cpu.args import DTYPES, OpKind
from pagelet.kernels.cpu.library import NUM_SIZES, Call, Sizes, library


class Program:
    """A sequence of operations over fixed buffers.

    The modules `kernels/*/cpu.py` append to it. Not to be run by two threads at once, nor while
    its buffers are written.
    """

    def __init__(self) -> None:
        self._library = library()
        self._operations: list[tuple[OpKind, ctypes.Structure]] = []
        self._buffers: list[torch.Tensor] = []
        self._calls: ctypes.Array[Call] | None = None
        """What the library is given; made at the first run."""

    def append(
        self, kind: OpKind, args: ctypes.Structure, buffers: tuple[torch.Tensor | None, ...]
    ) -> None:
        """Adds an operation; the program keeps the buffers that its arguments point into."""
        self._operations.append((kind, args))
        self._buffers.extend(buffer for buffer in buffers if buffer is not None)
        self._calls = None

    def extend(self, other: "Program") -> None:
        """Adds the operations of another program, with its buffers."""
        self._operations += other._operations
        self._buffers += other._buffers
        self._calls = None

    def run(self, *sizes: int) -> None:
        """Runs all operations, in order. An operation with `rows=i` works on sizes[i] rows, which
        must not be more than its buffers have."""
        if len(sizes) > NUM_SIZES:
            raise ValueError(f"a program has at most {NUM_SIZES} sizes, not {len(sizes)}")
        if not self._operations:
            return
        if self._calls is None:
            self._calls = (Call * len(self._operations))(
                *(Call(kind, ctypes.addressof(args)) for kind, args in self._operations)
            )
        self._library.run(self._calls, len(self._calls), ctypes.byref(Sizes(*sizes)))


def dtype_code(tensor: torch.Tensor, *, name: str) -> int:
    """The library's number for a tensor's dtype. Raises TypeError for one that it lacks."""
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} is {tensor.dtype}; the CPU library has float32 and bfloat16")
    return DTYPES[tensor.dtype]


def row_stride(tensor: torch.Tensor, *, name: str) -> int:
    """Elements from one row to the next of a tensor whose rows are each contiguous."""
    assert tensor.device.type == "cpu", f"{name} is on {tensor.device}"
    expected = 1
    for size, stride in zip(reversed(tensor.shape[1:]), reversed(tensor.stride()[1:]), strict=True):
        assert stride == expected or size == 1, f"{name} has gaps in its rows: {tensor.stride()}"
        expected *= size
    return tensor.stride(0)


def pointer(tensor: torch.Tensor | None) -> int | None:
    """The address of a tensor's first element."""
    return None if tensor is None else tensor.data_ptr()
