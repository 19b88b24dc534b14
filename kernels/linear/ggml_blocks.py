"""GGML's quantised blocks number by number: nothing is widened or rounded again.

Layouts are those of ggml's `ggml-common.h`. Blocks run along a row of the weight, so rows may be
reordered before or after. Types with groups of 16 inputs, and with minima of 5 bits, are exact on a
GPU only (`unpack_ggml_wide`): the floats of others can be packed as q8, which adds some hundredths
to the error that is in them already.
"""

from collections.abc import Callable
from typing import Final

import torch

from pagelet.kernels.linear.grouped import GroupedWeight
from pagelet.kernels.linear.packed import GROUP
from pagelet.kernels.linear.quantized import QuantizedWeight


def unpack_ggml(rows: torch.Tensor, type_name: str) -> QuantizedWeight:
    """A weight from its rows of blocks, uint8 [out_size, bytes a row], of a type in `UNPACKERS`."""
    return UNPACKERS[type_name](rows)


def unpack_ggml_wide(rows: torch.Tensor, type_name: str) -> GroupedWeight:
    """As `unpack_ggml`, of a type in `WIDE_UNPACKERS`: values of 5 and 6 bits in a byte each."""
    scales, values, minima = WIDE_UNPACKERS[type_name](rows)
    turned = None if minima is None else minima.T.contiguous()
    group_size = values.shape[1] // scales.shape[1]
    integers = values.to(torch.int8).contiguous()
    return GroupedWeight(
        "int8", integers, scales.T.contiguous(), turned, group_size, values.shape[1]
    )


def bits(packed: torch.Tensor, width: int) -> torch.Tensor:
    """[..., n] bytes to [..., 8 / width, n] integers of `width` bits, lowest bits first."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8).unsqueeze(-1)
    return (packed.unsqueeze(-2) >> shifts) & ((1 << width) - 1)


def _unpack_q8_0(rows: torch.Tensor) -> QuantizedWeight:
    """Block: float16 scale, 32 int8."""
    blocks = rows.view(rows.shape[0], -1, 2 + GROUP)
    values = blocks[:, :, 2:].flatten(1).view(torch.int8)
    return QuantizedWeight(_halves(blocks, 0), values)


def _unpack_q4_0(rows: torch.Tensor) -> QuantizedWeight:
    """Block: float16 scale, 16 bytes of nibbles; weight = scale * (nibble - 8)."""
    blocks = rows.view(rows.shape[0], -1, 2 + GROUP // 2)
    scales = _halves(blocks, 0)
    return QuantizedWeight(scales, _nibbles(blocks[:, :, 2:]), -8 * scales)


def _unpack_q4_1(rows: torch.Tensor) -> QuantizedWeight:
    """Block: float16 scale, float16 minimum, 16 bytes of nibbles."""
    blocks = rows.view(rows.shape[0], -1, 4 + GROUP // 2)
    scales, minima = _halves(blocks, 0), _halves(blocks, 2)
    return QuantizedWeight(scales, _nibbles(blocks[:, :, 4:]), minima)


def _unpack_q4_k(rows: torch.Tensor) -> QuantizedWeight:
    """Block of 256: float16 scales of scales and of minima, eight 6-bit pairs of those in 12 bytes,
    128 bytes of nibbles; weight = scale * nibble - minimum."""
    blocks = rows.view(rows.shape[0], -1, 144)
    scales, minima = _scales_and_minima(blocks)
    nibbles = _nibbles(blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 32))
    return QuantizedWeight(scales, nibbles, minima)


def _unpack_q5_0(rows: torch.Tensor) -> QuantizedWeight:
    """Block: float16 scale, 32 fifth bits, 16 bytes of nibbles; weight = scale * (value - 16)."""
    blocks = rows.view(rows.shape[0], -1, 6 + GROUP // 2)
    values = _nibbles(blocks[:, :, 6:]) | _fifth_bits(blocks, 2)
    return QuantizedWeight(_halves(blocks, 0), (values.to(torch.int16) - 16).to(torch.int8))


Wide = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Scales [out_size, groups], values [out_size, in_size], and minima like the scales."""


def _unpack_q5_1(rows: torch.Tensor) -> Wide:
    """Block: float16 scale, float16 minimum, 32 fifth bits, 16 bytes of nibbles."""
    blocks = rows.view(rows.shape[0], -1, 8 + GROUP // 2)
    values = _nibbles(blocks[:, :, 8:]) | _fifth_bits(blocks, 4)
    return _halves(blocks, 0), values, _halves(blocks, 2)


def _unpack_q5_k(rows: torch.Tensor) -> Wide:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles: a bit of each for 32 values."""
    blocks = rows.view(rows.shape[0], -1, 176)
    scales, minima = _scales_and_minima(blocks)
    high = bits(blocks[:, :, 16:48], 1).flatten(1)
    low = _nibbles(blocks[:, :, 48:].reshape(*blocks.shape[:2], 4, 32))
    return scales, low | high << 4, minima


def _unpack_q6_k(rows: torch.Tensor) -> Wide:
    """Block of 256: 128 bytes of nibbles, 64 bytes of upper bits, both in two halves; 16 int8
    scales of 16 values each, and a float16 scale of those; weight = scale * (value - 32)."""
    blocks = rows.view(rows.shape[0], -1, 210)
    shape = blocks.shape[:2]
    low = _nibbles(blocks[:, :, :128].reshape(*shape, 2, 64))
    high = bits(blocks[:, :, 128:192].reshape(*shape, 2, 32), 2).flatten(1)
    scales = blocks[:, :, 192:208].contiguous().view(torch.int8)
    values = (low | high << 4).to(torch.int16) - 32
    return (_halves(blocks, 208).unsqueeze(2) * scales).flatten(1), values, None


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the eight groups of a block of Q4_K or Q5_K: [out_size, groups]."""
    low, middle, rest = blocks[:, :, 4:16].view(*blocks.shape[:2], 3, 4).unbind(2)
    scales = torch.cat([low & 63, (rest & 15) | (low >> 6 << 4)], dim=2)
    minima = torch.cat([middle & 63, (rest >> 4) | (middle >> 6 << 4)], dim=2)
    return (
        (_halves(blocks, 0).unsqueeze(2) * scales).flatten(1),
        (_halves(blocks, 2).unsqueeze(2) * minima).flatten(1).neg(),
    )


def _fifth_bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Those of 32 values from four bytes, already in their place: [out_size, in_size]."""
    return bits(blocks[:, :, start : start + 4], 1).mT.flatten(1) << 4


def _halves(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """A float16 at a byte offset of every block: [out_size, blocks] in float32."""
    return blocks[:, :, start : start + 2].contiguous().view(torch.float16).squeeze(2).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[out_size, ..., n] bytes to [out_size, in_size]: all low halves of n, then all high ones."""
    return torch.stack([packed & 15, packed >> 4], dim=-2).flatten(1)


UNPACKERS: Final[dict[str, Callable[[torch.Tensor], QuantizedWeight]]] = {
    "Q4_0": _unpack_q4_0,
    "Q4_1": _unpack_q4_1,
    "Q4_K": _unpack_q4_k,
    "Q5_0": _unpack_q5_0,
    "Q8_0": _unpack_q8_0,
}
WIDE_UNPACKERS: Final[dict[str, Callable[[torch.Tensor], Wide]]] = {
    "Q5_1": _unpack_q5_1,
    "Q5_K": _unpack_q5_k,
    "Q6_K": _unpack_q6_k,
}
