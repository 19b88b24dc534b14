"""Decodes whose contexts are split among programs, and addresses beyond 32 bits."""

import random

import pytest
import torch

from pagelet.kernels.cpu.memory import empty_bytes
from pagelet.kernels.gpu import invariance
from pagelet.kernels.gpu.architectures import ARCHITECTURES
from pagelet.kernels.paged_attention import gpu_settings, reference, triton
from pagelet.kernels.paged_attention.gpu_settings import choose_settings, choose_splits
from support.attention_batch import Batch, unturned_write
from support.tolerance import TOLERANCE

LENS = [(1, 0), (1, 255), (1, 64), (1, 130)]


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_split_contexts_equal_dense_attention(
    monkeypatch: pytest.MonkeyPatch, window: int | None, with_sinks: bool
) -> None:
    """Of one token, with empty splits, and of whole tiles; rows beyond the last request are
    zeros, whatever they hold."""
    monkeypatch.setattr(gpu_settings, "_MIN_SPLIT_TOKENS", 16)
    kernels = []
    launch = triton.launch
    monkeypatch.setattr(
        triton, "launch", lambda kernel, *a, **k: (kernels.append(kernel), launch(kernel, *a, **k))
    )
    batch = Batch(random.Random(0), LENS, 1, 3, 16, 4, torch.float32, window)
    batch.query = torch.cat((batch.query, torch.full((2, 3, 16), torch.nan)))
    sinks = {"sinks": torch.tensor([0.0, 3.0, -3.0])} if with_sinks else {}
    out = batch.run(triton.paged_attention, window, None, **sinks)
    assert kernels == [triton.split_decode_kernel, triton.merge_splits_kernel]
    batch.query = batch.query[:4]
    expected = batch.dense_attention(window, None, **sinks)
    torch.testing.assert_close(out[:4].double(), expected, **TOLERANCE[torch.float32])
    assert (out[4:] == 0).all()


@pytest.mark.parametrize("programs", [1, 8, 100, 10_000])
def test_number_of_splits_is_bounded(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ARCHITECTURES.values():
        splits = choose_splits(target, programs, 1 << 20, 1 << 20)
        assert 1 <= splits <= gpu_settings.MAX_SPLITS
        assert splits == 1 or splits * (1 << 20) <= gpu_settings.MAX_PARTIAL_BYTES
        assert choose_splits(target, programs, 255, 1) == 1
    monkeypatch.setattr(invariance, "BATCH_INVARIANT", True)
    assert choose_splits(ARCHITECTURES["sm_90"], 1, 1 << 20, 1) == 1


def test_batch_invariance_has_one_shape_of_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariance, "BATCH_INVARIANT", True)
    for target in ARCHITECTURES.values():
        shapes = [choose_settings(target, 4, 128, 2, prefill=prefill) for prefill in (True, False)]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("prefill", [True, False])
def test_tiles_of_float32_fit_into_the_least_shared_memory(head_dim: int, prefill: bool) -> None:
    for name in ("sm_89", "sm_120"):
        target = ARCHITECTURES[name]
        found = choose_settings(target, 4, head_dim, 4, prefill=prefill, wide=True)
        loaded = found.rows + 2 * found.tile * found.stages  # of queries, keys and values
        assert 4 * head_dim * loaded <= target.shared_bytes


def test_blocks_beyond_two_to_the_31_are_found() -> None:
    """Pages at offsets that 32 bits don't hold, in memory of which only these are touched."""
    page, block_size, head_dim = 32 * 16, 32, 16
    num_blocks = (1 << 31) // page + 8
    cache = empty_bytes(2 * num_blocks * page).view(torch.int8).view(torch.float8_e4m3fn)
    cache = cache.view(2, num_blocks, 1, block_size, head_dim)
    blocks = [num_blocks - 1, 3, num_blocks - 5]
    heads = torch.randn(70, 2, head_dim, generator=torch.Generator().manual_seed(0))
    slots = torch.tensor([blocks[i // 32] * 32 + i % 32 for i in range(70)])
    unturned_write("triton")(heads[:, :1], heads[:, 1:], cache, slots)
    arguments = {
        "max_query_len": 1,
        "max_seq_len": 70,
        "query_lens_cpu": [1],
        "seq_lens_cpu": [70],
        "scale": 0.25,
    }
    start, lens = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([70], dtype=torch.int32)
    table = torch.tensor([blocks], dtype=torch.int32)
    query = heads[:1, :1]
    out = triton.paged_attention(query, cache, start, lens, table, **arguments)
    small = cache[:, blocks].contiguous()
    in_order = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    expected = reference.paged_attention(query, small, start, lens, in_order, **arguments)
    torch.testing.assert_close(out, expected, **TOLERANCE[torch.float32])
