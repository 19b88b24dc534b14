"""Weights of a linear layer, laid out once for the CPU library.

A panel holds 16 outputs, interleaved so that a vector register loads the same inputs of all of
them; `cpu_formats.h` describes the formats. All instruction sets share them.

| format | weight | activations | bits a weight |
| --- | --- | --- | --- |
| f32 | float32 | float32 | 32 |
| bf16 | bfloat16 | rounded to bfloat16 | 16 |
| q8 | scale * int8, a scale for 32 inputs | int8 by row and 32 inputs | 8.5 |
| q4 | scale * uint4 + minimum, both for 32 inputs | as q8 | 5 |

Scales are float16, or float32 (9 and 6 bits) where float16 would not hold them exactly.
"""

import ctypes
import dataclasses
from typing import Literal

import torch

from pagelet.kernels.cpu.library import library
from pagelet.kernels.cpu.memory import empty_bytes

LinearFormat = Literal["f32", "bf16", "q8", "q4"]

PANEL = 16  # outputs
GROUP = 32  # inputs that share a scale
BLOCK = 64  # inputs of two groups, which are whole cache lines
_CODES = {"f32": 0, "bf16": 1, "q8": 2, "q4": 4}


@dataclasses.dataclass(frozen=True)
class PackedLinear:
    """Packed weights [out_size, in_size]."""

    data: torch.Tensor  # uint8, 64-byte aligned
    out_size: int
    in_size: int
    format: LinearFormat
    wide_scales: bool = False
    """The scales of q8 and q4 are float32."""

    @property
    def code(self) -> int:
        """The library's number for this format."""
        return _CODES[self.format] + self.wide_scales

    @property
    def nbytes(self) -> int:
        """Bytes that a step reads."""
        return self.data.numel()

    @classmethod
    def from_q8_blocks(cls, scales: torch.Tensor, values: torch.Tensor) -> "PackedLinear":
        """From weights that are quantised already: weight = scale * value (GGUF's Q8_0).

        scales: [out_size, in_size / 32]; values: int8 [out_size, in_size].
        """
        assert values.dtype == torch.int8
        wide = not _fits_half(scales)
        packed = cls._empty(values.shape, "q8", wide)
        _call("pack_q8", _floats(scales), values.contiguous(), *values.shape, wide, packed.data)
        return packed

    @classmethod
    def from_q4_blocks(
        cls, scales: torch.Tensor, minima: torch.Tensor, values: torch.Tensor
    ) -> "PackedLinear":
        """From weights that are quantised already: weight = scale * value + minimum.

        scales, minima: [out_size, in_size / 32]; values: uint8 [out_size, in_size], 0 to 15.
        GGUF's Q4_0 has minimum = -8 * scale; Q4_1 is this format; Q4_K is, with its products of
        scales written out and its minima negated.
        """
        assert values.dtype == torch.uint8
        wide = not (_fits_half(scales) and _fits_half(minima))
        packed = cls._empty(values.shape, "q4", wide)
        numbers = _floats(scales), _floats(minima)
        _call("pack_q4", *numbers, values.contiguous(), *values.shape, wide, packed.data)
        return packed

    @classmethod
    def _empty(
        cls, shape: tuple[int, ...], format: LinearFormat, wide_scales: bool = False
    ) -> "PackedLinear":
        out_size, in_size = shape
        panels, blocks = -(-out_size // PANEL), -(-in_size // BLOCK)
        scale_bytes = (4 if wide_scales else 2) * PANEL * (BLOCK // GROUP)
        panel_bytes = {
            "f32": 4 * PANEL * in_size,
            "bf16": 4 * PANEL * -(-in_size // 2),
            "q8": blocks * (PANEL * BLOCK + scale_bytes),
            "q4": blocks * (PANEL * BLOCK // 2 + 2 * scale_bytes),
        }[format]
        return cls(empty_bytes(panels * panel_bytes), out_size, in_size, format, wide_scales)


def pack_linear(weight: torch.Tensor, format: LinearFormat) -> PackedLinear:
    """Packs (and for q8 and q4, quantises) the weight [out_size, in_size] of a linear layer.

    Raises UnavailableError where there is no CPU library.
    """
    if format == "q8":
        return PackedLinear.from_q8_blocks(*quantise_q8(weight))
    if format == "q4":
        return PackedLinear.from_q4_blocks(*quantise_q4(weight))
    packed = PackedLinear._empty(weight.shape, format)
    dtype = torch.float32 if format == "f32" else torch.bfloat16
    _call(f"pack_{format}", weight.to(dtype).contiguous(), *weight.shape, packed.data)
    return packed


def quantise_q8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales [out_size, groups] (float16 values) and int8 values [out_size, in_size], by the
    largest magnitude of each group of 32 inputs."""
    scales, values = _empty_groups(weight), torch.empty(weight.shape, dtype=torch.int8)
    _call("quantise_q8", _floats(weight), *weight.shape, scales, values)
    return scales, values


def quantise_q4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales and minima [out_size, groups] (float16 values) and uint8 values [out_size, in_size].

    Of several ranges and their fits, the one with the least squared error in each group of 32.
    """
    scales, minima = _empty_groups(weight), _empty_groups(weight)
    values = torch.empty(weight.shape, dtype=torch.uint8)
    _call("quantise_q4", _floats(weight), *weight.shape, scales, minima, values)
    return scales, minima, values


def _empty_groups(weight: torch.Tensor) -> torch.Tensor:
    return torch.empty(weight.shape[0], -(-weight.shape[1] // GROUP))


def _floats(values: torch.Tensor) -> torch.Tensor:
    return values.float().contiguous()


def _fits_half(values: torch.Tensor) -> bool:
    """Whether float16 holds the numbers exactly."""
    return torch.equal(values.half().float(), values.float())


def _call(name: str, *arguments: torch.Tensor | int) -> None:
    """Calls a function of `pack.cpp`."""
    function = getattr(library().handle, f"pagelet_cpu_{name}")
    function.restype = None
    function(*map(_as_c, arguments))


def _as_c(argument: torch.Tensor | int) -> ctypes.c_void_p | ctypes.c_bool | ctypes.c_int64:
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_bool(argument) if isinstance(argument, bool) else ctypes.c_int64(argument)
