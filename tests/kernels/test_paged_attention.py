"""Every implementation of the paged KV cache's two operations, on random batches."""

import random

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from pagelet.kernels.paged_attention import paged_attention, torch_native
from pagelet.kernels.paged_attention.pages import stored, token_size
from support.attention_batch import NAN, Batch, unturned_write
from support.tolerance import TOLERANCE

ALL_CACHES = ["reference", "triton"]
"""The implementations that take every type of cache, and sinks."""
CACHE_DTYPES = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8]
RNGS = st.randoms(use_true_random=False)
FAST = [name for name in paged_attention.implementations if name != "reference"]

SETTINGS = st.fixed_dictionaries(
    {
        "lens": st.lists(
            st.tuples(st.one_of(st.just(1), st.integers(1, 9)), st.integers(0, 40)),
            min_size=1,
            max_size=6,
        ),
        "num_kv_heads": st.integers(1, 3),
        "group": st.integers(1, 3),
        "head_dim": st.sampled_from([8, 16]),
        "block_size": st.sampled_from([1, 4, 16]),
        "dtype": st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
        "window": st.one_of(st.none(), st.integers(1, 20)),
    }
)


def examples(name: str, number: int) -> settings:
    """Fewer in Triton's interpreter, which is slow."""
    return settings(max_examples=number // 10 if name == "triton" else number)


@pytest.mark.parametrize("name", paged_attention.implementations)
def test_equals_dense_attention(name: str) -> None:
    @examples(name, 200)
    @given(SETTINGS, st.one_of(st.none(), st.just(3.0)), RNGS)
    def check(shape: dict, softcap: float | None, rng: random.Random) -> None:
        batch = Batch(rng, **shape)
        out = batch.run(paged_attention.implementations[name], shape["window"], softcap)
        expected = batch.dense_attention(shape["window"], softcap)
        torch.testing.assert_close(out.double(), expected, **TOLERANCE[shape["dtype"]])

    check()


@pytest.mark.parametrize("name", ALL_CACHES)
def test_every_type_of_cache_and_sinks(name: str) -> None:
    """Types of caches that are narrower than the queries', and a sink in each head."""

    @examples(name, 120)
    @given(SETTINGS, st.sampled_from(CACHE_DTYPES), st.booleans(), RNGS)
    def check(shape: dict, cache_dtype: torch.dtype, has_sinks: bool, rng: random.Random) -> None:
        if shape["dtype"] == torch.float64:
            shape["dtype"] = torch.float32  # which is what caches are converted from
        batch = Batch(
            rng,
            **shape,
            write=unturned_write(name),
            cache_dtype=cache_dtype,
            token_size=token_size(shape["head_dim"], cache_dtype),
            stored=lambda x: stored(x, cache_dtype),
        )
        heads = shape["num_kv_heads"] * shape["group"]
        sinks = {}
        if has_sinks:
            sinks["sinks"] = torch.tensor([rng.uniform(-9, 9) for _ in range(heads)])
        out = batch.run(paged_attention.implementations[name], shape["window"], None, **sinks)
        expected = batch.dense_attention(shape["window"], None, **sinks)
        # The interpreter rounds float32 to bfloat16 towards zero as it writes the cache.
        narrow = cache_dtype == torch.bfloat16 and name == "triton"
        tolerance = TOLERANCE[torch.bfloat16 if narrow else shape["dtype"]]
        torch.testing.assert_close(out.double(), expected, **tolerance)

    check()


@pytest.mark.parametrize("name", paged_attention.implementations)
def test_empty_batch(name: str) -> None:
    batch = Batch(random.Random(0), [], 2, 2, 8, 4, torch.float32, None)
    assert batch.run(paged_attention.implementations[name], None, None).shape == (0, 4, 8)


@pytest.mark.parametrize("name", FAST)
def test_long_prefill_and_many_decodes_are_cut_in_pieces(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits small enough that every way of cutting happens."""
    monkeypatch.setattr(torch_native, "_PREFILL_TOKENS", 7)
    monkeypatch.setattr(torch_native, "_MAX_GATHERED", 2 * 2 * 8 * 50)
    rng = random.Random(1)
    lens = [(1, rng.randrange(100)) for _ in range(20)] + [(30, 0), (25, 11), (7, 7)]
    rng.shuffle(lens)
    for window in (None, 1, 5, 33):
        batch = Batch(rng, lens, 2, 3, 8, 4, torch.float64, window)
        expected = batch.dense_attention(window, None)
        torch.testing.assert_close(
            batch.run(paged_attention.implementations[name], window, None), expected
        )


@pytest.mark.parametrize("name", paged_attention.implementations)
def test_a_row_does_not_depend_on_the_batch_or_the_chunks(name: str) -> None:
    """In float64, to rounding: the same token alone, among others, as a decode or in a chunk."""
    attention = paged_attention.implementations[name]
    rng = random.Random(2)
    together = Batch(rng, [(5, 20), (1, 24), (1, 3)], 2, 2, 16, 4, torch.float64, None)
    out = together.run(attention, None, None)
    alone = Batch(rng, [(1, 24)], 2, 2, 16, 4, torch.float64, None)
    alone.cache, alone.block_table = together.cache, together.block_table[1:2]
    alone.query = together.query[5:6]
    torch.testing.assert_close(alone.run(attention, None, None), out[5:6], atol=1e-14, rtol=0)
    chunk = Batch(rng, [(2, 23)], 2, 2, 16, 4, torch.float64, None)
    chunk.cache, chunk.block_table = together.cache, together.block_table[:1]
    chunk.query = together.query[3:5]
    torch.testing.assert_close(chunk.run(attention, None, None), out[3:5], atol=1e-14, rtol=0)


@pytest.mark.parametrize("name", paged_attention.implementations)
def test_nan_in_the_context_is_not_hidden(name: str) -> None:
    """Poison is kept out, but a broken context must show."""
    batch = Batch(random.Random(3), [(1, 9), (4, 9)], 1, 2, 8, 4, torch.float32, None)
    batch.cache[:, batch.block_table[0, 0], :, 0] = NAN
    out = batch.run(paged_attention.implementations[name], None, None)
    assert out[0].isnan().all()
    assert out[1:].isfinite().all()


@pytest.mark.parametrize("name", paged_attention.implementations)
def test_rows_beyond_the_last_request_are_zero(name: str) -> None:
    batch = Batch(random.Random(4), [(1, 9), (4, 9)], 1, 2, 8, 4, torch.float32, None)
    batch.query = torch.cat((batch.query, torch.full((3, 2, 8), NAN)))
    out = batch.run(paged_attention.implementations[name], None, None)
    assert out[:5].isfinite().all()
    assert (out[5:] == 0).all()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("window", [None, 6])
def test_sinks(name: str, window: int | None) -> None:
    batch = Batch(random.Random(6), [(1, 9), (5, 4), (3, 0)], 2, 2, 8, 4, torch.float32, window)
    sinks = torch.tensor([0.5, -2.0, 3.0, 40.0])
    out = batch.run(paged_attention.implementations[name], window, None, sinks=sinks)
    expected = batch.dense_attention(window, None, sinks)
    torch.testing.assert_close(out.double(), expected, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", ALL_CACHES)
def test_a_row_that_sees_nothing_is_zero(name: str) -> None:
    """As the dummy requests that fill a CUDA graph's batch: one token of an empty context."""
    batch = Batch(random.Random(5), [(1, 9), (1, 4)], 1, 2, 8, 4, torch.float32, None)
    batch.seq_lens[1] = 0
    batch.block_table[1] = 0
    out = batch.run(paged_attention.implementations[name])
    assert out[0].isfinite().all()
    assert (out[1] == 0).all()
