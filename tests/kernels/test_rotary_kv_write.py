"""Queries turned, and keys and values written to their pages, in every implementation."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from pagelet.kernels.kv_write.reference import kv_write
from pagelet.kernels.paged_attention.pages import int8_pages, token_size
from pagelet.kernels.precision import accumulation_dtype
from pagelet.kernels.rotary import rotary_kv_write
from pagelet.kernels.rotary.reference import rotary
from support.tolerance import TOLERANCE

NAN = float("nan")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8]
FAST = [name for name in rotary_kv_write.implementations if name != "reference"]
BLOCKS, BLOCK_SIZE = 8, 4


def poisoned(num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """A cache whose bits are all ones: NaN, or -1."""
    size = token_size(head_dim, dtype) * dtype.itemsize
    bits = torch.full((2, BLOCKS, num_kv_heads, BLOCK_SIZE, size), -1, dtype=torch.int8)
    return bits.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAST)
@given(
    num_tokens=st.integers(0, 9),
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    half=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15)
def test_equals_the_reference_and_writes_no_other_slot(
    name: str,
    dtype: torch.dtype,
    num_tokens: int,
    num_kv_heads: int,
    group: int,
    half: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_heads = group * num_kv_heads
    # As the attention layer passes them: slices of one wider tensor.
    heads = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, 2 * half, generator=generator)
    sizes = num_heads, num_kv_heads, num_kv_heads
    query, key, value = heads.to(dtype).split(sizes, 1)
    angles = torch.randn(num_tokens, half, generator=generator).to(accumulation_dtype(dtype))
    slots = torch.randperm(BLOCKS * BLOCK_SIZE, generator=generator)[:num_tokens]
    caches = [poisoned(num_kv_heads, 2 * half, dtype) for _ in range(2)]
    turned = [
        rotary_kv_write.implementations[which](
            query, key, value, angles.cos(), angles.sin(), cache, slots
        )
        for which, cache in zip((name, "reference"), caches, strict=True)
    ]
    torch.testing.assert_close(*turned, **TOLERANCE[dtype])
    torch.testing.assert_close(*caches, **TOLERANCE[dtype], equal_nan=True)
    by_slot = caches[0].transpose(2, 3).flatten(1, 2)
    assert torch.equal(by_slot[1, slots], value)
    others = torch.ones(BLOCKS * BLOCK_SIZE, dtype=torch.bool)
    others[slots] = False
    assert by_slot[:, others].isnan().all()


@pytest.mark.parametrize("cache_dtype", [torch.float32, *NARROW])
def test_triton_converts_as_the_reference(cache_dtype: torch.dtype) -> None:
    """To the byte, in pages that are poison elsewhere; a NaN spoils its own token's head."""
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(9, 9, 8, generator=generator)
    heads *= 10 ** torch.linspace(-6, 3, 9)[:, None, None]
    heads[0, 3], heads[1, 8, 2] = 0, NAN
    if cache_dtype in (torch.bfloat16, torch.float16):
        heads = heads.to(cache_dtype)  # the interpreter rounds otherwise than GPUs do
    query, key, value = heads.split(3, 1)
    # Quarter turns: the turned keys are the same numbers, whatever the order of the sums.
    quarters = torch.arange(36).view(9, 4) % 4
    cos, sin = torch.tensor([1.0, 0, -1, 0])[quarters], torch.tensor([0, 1.0, 0, -1])[quarters]
    slots = torch.randperm(BLOCKS * BLOCK_SIZE, generator=generator)[:9]
    caches = []
    for name in ("reference", "triton"):
        cache = poisoned(3, 8, cache_dtype)
        rotary_kv_write.implementations[name](query, key, value, cos, sin, cache, slots)
        caches.append(cache)
    if cache_dtype == torch.int8:
        expected, actual = (int8_pages(cache) for cache in caches)
        torch.testing.assert_close(actual[1], expected[1], rtol=1e-6, atol=0, equal_nan=True)
        known = expected[1].isfinite()
        assert (actual[0][known].int() - expected[0][known].int()).abs().max() <= 1
    else:
        assert torch.equal(*(cache.view(torch.uint8) for cache in caches))


def test_the_reference_keeps_relative_positions() -> None:
    """And the cache gets the turned key."""
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, 1, 8, generator=generator, dtype=torch.float64)
    frequencies = torch.rand(1, 4, generator=generator, dtype=torch.float64)

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        angles = frequencies * position
        return rotary(x, angles.cos(), angles.sin())

    near = (turned(query, 5) * turned(key, 3)).sum()
    far = (turned(query, 105) * turned(key, 103)).sum()
    torch.testing.assert_close(near, far)
    assert not torch.allclose(near, (turned(query, 6) * turned(key, 3)).sum())
    torch.testing.assert_close(turned(query, 9).norm(), query.norm())
    caches = [poisoned(1, 8, torch.float64) for _ in range(2)]
    slot, angles = torch.tensor([6]), frequencies * 3
    reference = rotary_kv_write.implementations["reference"]
    out = reference(query, key, key, angles.cos(), angles.sin(), caches[0], slot)
    assert torch.equal(out, turned(query, 3))
    kv_write(turned(key, 3), key, caches[1], slot)
    assert torch.equal(*(cache.nan_to_num() for cache in caches))
