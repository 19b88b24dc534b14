"""Against the `gguf` package's dequantisation, on random bytes."""

import gguf
import numpy as np
import pytest
import torch

from pagelet.engine.weights import dequantize as module
from pagelet.engine.weights.dequantize import dequantize, is_quantized, view_floats
from pagelet.engine.weights.gguf_file import GGMLType
from pagelet.protocol.errors import ModelSourceError

QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
FLOATS = ["F64", "F32", "F16", "BF16"]


def random_bytes(ggml_type: GGMLType, num_blocks: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, num_blocks * ggml_type.block_bytes, dtype=np.uint8)


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("num_blocks", [1, 3, 1024])
def test_equal_to_the_bit_on_random_bytes(name: str, num_blocks: int) -> None:
    """Random scales are of every kind: tiny, huge, infinite, and not a number."""
    ggml_type = GGMLType[name]
    data = random_bytes(ggml_type, num_blocks, seed=num_blocks)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
    found = dequantize(data, ggml_type, (num_blocks, ggml_type.block_size), torch.float32)
    found_flat, expected_flat = found.flatten().numpy(), expected.flatten()
    nan = np.isnan(expected_flat)
    np.testing.assert_array_equal(np.isnan(found_flat), nan)
    np.testing.assert_array_equal(
        found_flat.view(np.uint32)[~nan], expected_flat.view(np.uint32)[~nan]
    )
    assert not nan.all()


@pytest.mark.parametrize("name", QUANTIZED)
def test_chunks_and_dtypes_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ggml_type = GGMLType[name]
    shape = (7, 4 * ggml_type.block_size)
    data = random_bytes(ggml_type, 28, seed=0)
    whole = dequantize(data, ggml_type, shape, torch.float32)
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 3 * ggml_type.block_size)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        found = dequantize(data, ggml_type, shape, dtype)
        assert found.shape == shape
        assert torch.equal(found.nan_to_num(0.0), whole.to(dtype).nan_to_num(0.0))


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_taken_as_they_lie(name: str) -> None:
    ggml_type = GGMLType[name]
    data = random_bytes(ggml_type, 12, seed=0)
    view = view_floats(data, ggml_type, (3, 4))
    assert view.shape == (3, 4)
    assert view.flatten().view(torch.uint8).numpy().tobytes() == data.tobytes()
    assert view.data_ptr() == data.ctypes.data
    assert not is_quantized(ggml_type)
    converted = dequantize(data, ggml_type, (3, 4), torch.float32)
    assert torch.equal(converted.nan_to_num(0.0), view.float().nan_to_num(0.0))


def test_unsupported_type_is_named_with_the_supported_ones() -> None:
    data = random_bytes(GGMLType.IQ4_XS, 1, seed=0)
    with pytest.raises(ModelSourceError, match=r"IQ4_XS can't be loaded.*Q4_0.*Q6_K.*BF16"):
        dequantize(data, GGMLType.IQ4_XS, (1, 256), torch.float32)
