"""GGML's quantised blocks number by number: nothing is widened or rounded again.

Layouts are those of ggml's `ggml-common.h`. Blocks run along a row of the weight, so rows may be
reordered before or after. Types that are not here have groups of 16 inputs or 5 and 6 bits: their
floats can be packed as q8, which adds some hundredths to the error that is in them already.
"""

from collections.abc import Callable
from typing import Final

import torch

from pagelet.kernels.linear.packed import GROUP
from pagelet.kernels.linear.quantized import QuantizedWeight


def unpack_ggml(rows: torch.Tensor, type_name: str) -> QuantizedWeight:
    """A weight from its rows of blocks, uint8 [out_size, bytes a row], of a type in `UNPACKERS`."""
    return UNPACKERS[type_name](rows)


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
    low, middle, rest = blocks[:, :, 4:16].view(*blocks.shape[:2], 3, 4).unbind(2)
    scales = torch.cat([low & 63, (rest & 15) | (low >> 6 << 4)], dim=2)
    minima = torch.cat([middle & 63, (rest >> 4) | (middle >> 6 << 4)], dim=2)
    return QuantizedWeight(
        (_halves(blocks, 0).unsqueeze(2) * scales).flatten(1),
        _nibbles(blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 32)),
        (_halves(blocks, 2).unsqueeze(2) * minima).flatten(1).neg(),
    )


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
    "Q8_0": _unpack_q8_0,
}
