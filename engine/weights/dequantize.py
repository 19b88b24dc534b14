"""GGML's quantised blocks as floats.

Layouts are those of ggml's `ggml-common.h`; results equal ggml's own to the bit in float32, which
fixes the order of operations: one product of scale and integer, then one sum.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pagelet.engine.weights.gguf_file import GGMLType
from pagelet.kernels.linear.ggml_blocks import bits
from pagelet.protocol.errors import ModelSourceError

# Elements that are unpacked at a time: float32 and integer temporaries stay at some 20 MB.
_CHUNK_ELEMENTS: Final = 1 << 20

_FLOATS: Final[dict[GGMLType, torch.dtype]] = {
    GGMLType.F64: torch.float64,
    GGMLType.F32: torch.float32,
    GGMLType.F16: torch.float16,
    GGMLType.BF16: torch.bfloat16,
}


def is_quantized(ggml_type: GGMLType) -> bool:
    """Whether a tensor of this type has to be unpacked; others are floats as they lie."""
    return ggml_type not in _FLOATS


def check_supported(ggml_type: GGMLType) -> None:
    """Raises ModelSourceError, naming those that are, if a type can't be unpacked."""
    if ggml_type not in _UNPACK and ggml_type not in _FLOATS:
        supported = ", ".join(t.name for t in (*_UNPACK, *_FLOATS))
        raise ModelSourceError(
            f"tensors in {ggml_type.name} can't be loaded; use a file in one of: {supported}"
        )


def view_floats(
    data: npt.NDArray[np.uint8], ggml_type: GGMLType, shape: tuple[int, ...]
) -> torch.Tensor:
    """A tensor of floats over the same memory as `data`."""
    return torch.from_numpy(data).view(_FLOATS[ggml_type]).view(shape)


def dequantize(
    data: npt.NDArray[np.uint8],
    ggml_type: GGMLType,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Unpacks a tensor's bytes into a new tensor of `shape` and the float type `dtype`.

    Raises ModelSourceError for a quantised type that isn't supported.
    """
    if ggml_type in _FLOATS:
        return view_floats(data, ggml_type, shape).to(dtype, copy=True)
    check_supported(ggml_type)
    unpack = _UNPACK[ggml_type]
    blocks = torch.from_numpy(data).view(-1, ggml_type.block_bytes)
    result = torch.empty(math.prod(shape), dtype=dtype)
    chunk = _CHUNK_ELEMENTS // ggml_type.block_size
    for part, target in zip(
        torch.split(blocks, chunk),
        torch.split(result, chunk * ggml_type.block_size),
        strict=True,
    ):
        target.copy_(unpack(part).flatten())
    return result.view(shape)


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """A float16 at a byte offset of every block: [num_blocks, 1] in float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to [..., 2, n]: all low halves, then all high ones."""
    return torch.stack([packed & 15, packed >> 4], dim=-2)


def _fifth_bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The fifth bits of 32 elements from four bytes, already in their place: [num_blocks, 32]."""
    packed = blocks[:, start : start + 4]
    return bits(packed, 1).transpose(-1, -2).flatten(1) << 4


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 2:]).flatten(1).float() - 8
    return _half(blocks, 0) * quants


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).flatten(1) + _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 6:]).flatten(1) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (quants.float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    quants = _nibbles(blocks[:, 8:]).flatten(1) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * quants + _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8) * _half(blocks, 0)


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the eight sub-blocks of Q4_K and Q5_K, two halves times six bits: [num_blocks, 8, 1]."""
    scales, minima, rest = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    # The last four sub-blocks have their low bits in `rest`, the high ones above the others' six.
    scale = torch.cat([scales & 63, (rest & 15) | (scales >> 6 << 4)], dim=-1)
    minimum = torch.cat([minima & 63, (rest >> 4) | (minima >> 6 << 4)], dim=-1)
    return (
        (_half(blocks, 0) * scale).unsqueeze(-1),
        (_half(blocks, 2) * minimum).unsqueeze(-1),
    )


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = _scales_and_minima(blocks)
    quants = _nibbles(blocks[:, 16:].view(-1, 4, 32)).flatten(1, 2)  # [num_blocks, 8, 32]
    return scale * quants - minimum


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = _scales_and_minima(blocks)
    high = bits(blocks[:, 16:48], 1)  # [num_blocks, 8, 32]
    low = _nibbles(blocks[:, 48:].view(-1, 4, 32)).flatten(1, 2)
    return scale * (low | high << 4) - minimum


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).reshape(-1, 16, 16)
    high = bits(blocks[:, 128:192].view(-1, 2, 32), 2).reshape(-1, 16, 16)
    scales = blocks[:, 192:208].contiguous().view(torch.int8)
    scale = (_half(blocks, 208) * scales).unsqueeze(-1)  # [num_blocks, 16, 1]
    return scale * ((low | high << 4).float() - 32)


_UNPACK: Final[dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]]] = {
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
}
