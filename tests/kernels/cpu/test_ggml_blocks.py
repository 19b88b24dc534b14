"""GGML's blocks keep their exact weights when they are packed."""

import gguf
import numpy as np
import pytest
import torch

from pagelet.kernels.linear import packed_reference
from pagelet.kernels.linear.ggml_blocks import UNPACKERS, unpack_ggml
from pagelet.kernels.linear.packed import pack_linear

SIZES = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q4_K": (256, 144),
    "Q5_0": (32, 22),
    "Q8_0": (32, 34),
}


def random_blocks(
    name: str, out_size: int, in_size: int
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Bytes that are random but for the scales, which are finite."""
    block, size = SIZES[name]
    generator = np.random.default_rng(3)
    blocks = generator.integers(0, 256, (out_size * in_size // block, size), dtype=np.uint8)
    halves = 2 if name in ("Q4_1", "Q4_K") else 1
    scales = generator.normal(size=(len(blocks), halves)).astype(np.float16)
    blocks[:, : 2 * halves] = scales.view(np.uint8)
    return blocks.reshape(-1)


@pytest.mark.parametrize("name", UNPACKERS)
def test_packed_weights_equal_ggml_s(tier: str, name: str) -> None:
    out_size, in_size = 37, 512
    data = random_blocks(name, out_size, in_size)
    packed = unpack_ggml(torch.from_numpy(data).view(out_size, -1), name).pack()
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[name]).reshape(out_size, in_size)
    error = packed_reference.unpack(packed) - torch.from_numpy(expected).double()
    # ggml rounds to float32 after each operation; the packed numbers are exact.
    assert error.abs().max() <= 2**-23 * np.abs(expected).max()
    assert packed.wide_scales == (name == "Q4_K")


@pytest.mark.parametrize("name", ["Q5_1"])
def test_other_types_lose_little_as_q8(tier: str, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 512, generator=generator)
    type_ = gguf.GGMLQuantizationType[name]
    stored = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), type_), type_)).double()
    packed = packed_reference.unpack(pack_linear(stored.float(), "q8"))
    own_loss = (stored - weight.double()).norm()
    assert (packed - weight.double()).norm() < 1.03 * own_loss
