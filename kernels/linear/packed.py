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

import dataclasses
from typing import Literal

import torch
from torch.nn import functional

from pagelet.kernels.cpu.memory import empty_bytes

LinearFormat = Literal["f32", "bf16", "q8", "q4"]

PANEL = 16  # outputs
GROUP = 32  # inputs that share a scale
_BLOCK = 64  # inputs of two groups, which are whole cache lines
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
        out_size, in_size = values.shape
        scales, wide = _scale_dtype(scales)
        unsigned = (values.view(torch.uint8) ^ 0x80).contiguous()  # value + 128
        unsigned = _pad(unsigned, _BLOCK, 0x80)
        panels, blocks = unsigned.shape[0] // PANEL, unsigned.shape[1] // _BLOCK
        data = unsigned.view(panels, PANEL, blocks, 16, 4).permute(0, 2, 3, 1, 4)
        packed = torch.cat(
            [data.reshape(panels, blocks, -1), _group_bytes(scales, panels, blocks)], dim=2
        )
        return cls(_aligned(packed), out_size, in_size, "q8", wide)

    @classmethod
    def from_q4_blocks(
        cls, scales: torch.Tensor, minima: torch.Tensor, values: torch.Tensor
    ) -> "PackedLinear":
        """From weights that are quantised already: weight = scale * value + minimum.

        scales, minima: [out_size, in_size / 32]; values: uint8 [out_size, in_size], 0 to 15.
        GGUF's Q4_0 has minimum = -8 * scale; Q4_1 is this format; Q4_K is, with its products of
        scales written out and its minima negated.
        """
        out_size, in_size = values.shape
        both, wide = _scale_dtype(torch.stack([scales, minima]))
        padded = _pad(values, _BLOCK, 0)
        panels, blocks = padded.shape[0] // PANEL, padded.shape[1] // _BLOCK
        parts = padded.view(panels, PANEL, blocks, 2, 2, 4, 4)  # group, half, word, byte
        data = (parts[:, :, :, :, 0] | parts[:, :, :, :, 1] << 4).permute(0, 2, 3, 4, 1, 5)
        packed = torch.cat(
            [
                data.reshape(panels, blocks, -1),
                _group_bytes(both[0], panels, blocks),
                _group_bytes(both[1], panels, blocks),
            ],
            dim=2,
        )
        return cls(_aligned(packed), out_size, in_size, "q4", wide)


def pack_linear(weight: torch.Tensor, format: LinearFormat) -> PackedLinear:
    """Packs (and for q8 and q4, quantises) the weight [out_size, in_size] of a linear layer."""
    out_size, in_size = weight.shape
    if format == "q8":
        return PackedLinear.from_q8_blocks(*quantise_q8(weight))
    if format == "q4":
        return PackedLinear.from_q4_blocks(*quantise_q4(weight))
    dtype, pair = (torch.float32, 1) if format == "f32" else (torch.bfloat16, 2)
    padded = _pad(weight.to(dtype), pair, 0)
    panels = padded.shape[0] // PANEL
    data = padded.view(panels, PANEL, -1, pair).transpose(1, 2)
    return PackedLinear(_aligned(data), out_size, in_size, format)


def quantise_q8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales [out_size, groups] (float16 values) and int8 values [out_size, groups * 32], by the
    largest magnitude of each group."""
    groups = _groups(weight)
    scales = _half(groups.abs().amax(dim=2) / 127)
    values = groups.div(scales.where(scales > 0, 1).unsqueeze(2)).round_().clamp_(-127, 127)
    return scales, values.to(torch.int8).flatten(1)[:, : weight.shape[1]]


def quantise_q4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales and minima [out_size, groups] (float16 values) and uint8 values of 0 to 15.

    Of several ranges, each a little narrower than the group's, the one with the least squared
    error: cutting off an extreme weight can pay for a finer step between the others.
    """
    groups = _groups(weight)
    low, high = groups.amin(dim=2), groups.amax(dim=2)
    best = [torch.empty_like(low), torch.empty_like(low), torch.empty_like(groups)]
    least = torch.full_like(low, torch.inf)
    for shrink in (0.0, 0.03, 0.06, 0.09, 0.12, 0.16, 0.2):
        cut = (high - low) * (shrink / 2)
        scales, minima = _half((high - low - 2 * cut) / 15), _half(low + cut)
        step = scales.where(scales > 0, 1).unsqueeze(2)
        values = groups.sub(minima.unsqueeze(2)).div_(step).round_().clamp_(0, 15)
        error = (values * scales.unsqueeze(2) + minima.unsqueeze(2) - groups).square_().sum(dim=2)
        better = error < least
        least = error.where(better, least)
        for kept, candidate in zip(best, (scales, minima, values), strict=True):
            mask = better if kept.ndim == 2 else better.unsqueeze(2)
            kept.copy_(candidate.where(mask, kept))
    scales, minima, values = best
    return scales, minima, values.to(torch.uint8).flatten(1)[:, : weight.shape[1]]


def _groups(weight: torch.Tensor) -> torch.Tensor:
    """The weights as float32 [out_size, groups, 32]; the last group repeats its last input."""
    wide = weight.float()
    if missing := -wide.shape[1] % GROUP:
        wide = torch.cat([wide, wide[:, -1:].expand(-1, missing)], dim=1)
    return wide.view(wide.shape[0], -1, GROUP)


def _half(values: torch.Tensor) -> torch.Tensor:
    """Rounded to what float16 holds."""
    return values.half().float()


def _scale_dtype(scales: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Scales in the narrowest dtype that holds them exactly, and whether that is float32."""
    wide = scales.float()
    narrow = wide.half()
    return (narrow, False) if torch.equal(narrow.float(), wide) else (wide, True)


def _pad(values: torch.Tensor, multiple: int, fill: int) -> torch.Tensor:
    """Completes panels of outputs and blocks of inputs."""
    rows, columns = values.shape
    return functional.pad(values, (0, -columns % multiple, 0, -rows % PANEL), value=fill)


def _group_bytes(scales: torch.Tensor, panels: int, blocks: int) -> torch.Tensor:
    """One number a group and output as bytes [panels, blocks, group, output]."""
    rows, groups = scales.shape
    padded = functional.pad(scales, (0, blocks * 2 - groups, 0, panels * PANEL - rows))
    lanes = padded.view(panels, PANEL, blocks, 2).permute(0, 2, 3, 1).contiguous()
    return lanes.view(torch.uint8).view(panels, blocks, -1)


def _aligned(data: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in memory that a step reads fast."""
    flat = data.contiguous().view(torch.uint8).flatten()
    return empty_bytes(flat.numel()).copy_(flat)
