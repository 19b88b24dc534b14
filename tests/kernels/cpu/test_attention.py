"""Paged attention and the KV write of the CPU library, in every instruction set."""

import itertools
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pagelet.kernels.cpu.library import library
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.kv_write.cpu import kv_write, record_kv_write
from pagelet.kernels.paged_attention.cpu import (
    paged_attention,
    record_paged_attention,
)
from pagelet.kernels.paged_attention.pages import token_size
from support.attention_batch import NAN, Batch

F32, BF16, INT8 = torch.float32, torch.bfloat16, torch.int8
MANY = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Activations and cache. bf16 keys are multiplied by queries rounded to bf16.
DTYPES = {
    (F32, F32): {"atol": 5e-6, "rtol": 5e-6},
    (F32, BF16): {"atol": 1e-2, "rtol": 1e-2},
    (BF16, BF16): {"atol": 4e-3, "rtol": 2**-7},
    (BF16, F32): {"atol": 4e-3, "rtol": 2**-7},
    (F32, INT8): {"atol": 5e-6, "rtol": 5e-6},
    (BF16, INT8): {"atol": 4e-3, "rtol": 2**-7},
}


@pytest.fixture(params=[1, 2], ids=["1_thread", "2_threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = library().threads
    library().set_threads(request.param)
    yield request.param
    library().set_threads(before)


def lens(max_context: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """(query_len, tokens before it) of a few requests."""
    query_len = st.one_of(st.just(1), st.integers(1, 60))
    return st.lists(st.tuples(query_len, st.integers(0, max_context)), min_size=1, max_size=4)


SHAPES = st.fixed_dictionaries(
    {
        "num_kv_heads": st.integers(1, 3),
        "group": st.sampled_from([1, 2, 3, 4, 7, 8, 16, 30]),
        "head_dim": st.sampled_from([8, 24, 64, 72, 80, 96, 128, 256]),
        "block_size": st.sampled_from([16, 32, 48, 128]),
        "window": st.one_of(st.none(), st.integers(1, 90), st.integers(200, 600)),
    }
)
RNGS = st.randoms(use_true_random=False)
SOFTCAPS = st.one_of(st.none(), st.just(3.0))


def make(
    rng: random.Random, lens: list[tuple[int, int]], shape: dict, dtypes: tuple = (F32, F32)
) -> Batch:
    dtype, cache_dtype = dtypes
    return Batch(
        rng,
        lens,
        dtype=dtype,
        write=kv_write,
        cache_dtype=cache_dtype,
        token_size=token_size(shape["head_dim"], cache_dtype),
        stored=as_int8 if cache_dtype == INT8 else None,
        **shape,
    )


def as_int8(x: torch.Tensor) -> torch.Tensor:
    """What is left of keys or values in an int8 cache."""
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() * (1 / scale)) * scale


@given(lens(70), SHAPES, st.sampled_from(list(DTYPES)), SOFTCAPS, RNGS)
@MANY
def test_equals_dense_attention(
    tier: str,
    lens: list[tuple[int, int]],
    shape: dict,
    dtypes: tuple[torch.dtype, torch.dtype],
    softcap: float | None,
    rng: random.Random,
) -> None:
    batch = make(rng, lens, shape, dtypes)
    out = batch.run(paged_attention, shape["window"], softcap)
    expected = batch.dense_attention(shape["window"], softcap)
    torch.testing.assert_close(out.double(), expected, **DTYPES[dtypes])


@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 256, 700])
def test_contexts_of_several_tiles(
    tier: str, threads: int, dtypes: tuple[torch.dtype, torch.dtype], window: int | None
) -> None:
    """Tiles are 256 tokens: contexts that end before, at and behind their borders."""
    lens = [(1, 254), (1, 255), (1, 256), (3, 510), (40, 750), (1, 2000), (30, 0)]
    shape = {"num_kv_heads": 2, "group": 3, "head_dim": 16, "block_size": 16, "window": window}
    batch = make(random.Random(1), lens, shape, dtypes)
    out = batch.run(paged_attention, window)
    torch.testing.assert_close(out.double(), batch.dense_attention(window, None), **DTYPES[dtypes])


@given(lens(700), SHAPES, st.sampled_from(list(DTYPES)), SOFTCAPS, RNGS)
@example(
    [(50, 0), (1, 700), (50, 480)],
    {"num_kv_heads": 1, "group": 3, "head_dim": 64, "block_size": 16, "window": None},
    (BF16, BF16),
    None,
    random.Random(0),
)
@MANY
def test_bits_of_a_row_depend_on_its_context_only(
    tier: str,
    lens: list[tuple[int, int]],
    shape: dict,
    dtypes: tuple[torch.dtype, torch.dtype],
    softcap: float | None,
    rng: random.Random,
) -> None:
    """Alone, among others, in one chunk or in many, token by token, on one thread or on two."""
    batch = make(rng, lens, shape, dtypes)
    library().set_threads(2)
    together = batch.run(paged_attention, shape["window"], softcap)
    chunks = []
    for request, length in enumerate(batch.query_lens):
        borders = sorted({0, length, *(rng.randrange(length + 1) for _ in range(rng.randrange(5)))})
        chunks += [(request, *ends) for ends in itertools.pairwise(borders)]
    rng.shuffle(chunks)
    while chunks:
        step = [chunks.pop() for _ in range(min(len(chunks), rng.randint(1, 4)))]
        library().set_threads(rng.randint(1, 2))
        out = batch.part(step).run(paged_attention, shape["window"], softcap)
        expected = torch.cat([batch.rows(together, *chunk) for chunk in step])
        assert torch.equal(out, expected), step


def test_long_decode_is_the_same_split_over_threads_or_not(tier: str) -> None:
    """Alone on two threads its tiles are dealt out; in a large batch they are not."""
    shape = {"num_kv_heads": 1, "group": 2, "head_dim": 64, "block_size": 16, "window": None}
    batch = make(random.Random(2), [(1, 4000)] * 40, shape)
    outs = []
    for threads in (1, 2, 7):
        library().set_threads(threads)
        outs.append(batch.run(paged_attention))
        outs.append(torch.cat([batch.part([(i, 0, 1)]).run(paged_attention) for i in range(40)]))
    library().set_threads(2)
    assert all(torch.equal(out, outs[0]) for out in outs[1:])


def test_empty_batch(tier: str) -> None:
    shape = {"num_kv_heads": 2, "group": 2, "head_dim": 8, "block_size": 16, "window": None}
    assert make(random.Random(0), [], shape).run(paged_attention).shape == (0, 4, 8)


def test_requests_without_tokens_and_rows_without_requests(tier: str) -> None:
    shape = {"num_kv_heads": 1, "group": 2, "head_dim": 8, "block_size": 16, "window": None}
    batch = make(random.Random(4), [(2, 9), (0, 5), (4, 9)], shape)
    expected = batch.dense_attention(None, None).float()
    batch.query = torch.cat((batch.query, torch.full((3, 2, 8), NAN)))
    out = batch.run(paged_attention)
    torch.testing.assert_close(out[:6], expected, atol=5e-6, rtol=5e-6)
    assert (out[6:] == 0).all()


@pytest.mark.parametrize("dtypes", DTYPES)
def test_a_broken_token_shows_in_the_rows_that_see_it_and_in_no_other(
    tier: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    shape = {"num_kv_heads": 2, "group": 3, "head_dim": 24, "block_size": 16, "window": 30}
    batch = make(random.Random(3), [(90, 230), (1, 400)], shape, dtypes)
    clean = batch.run(paged_attention, 30)
    position = 270
    slot = int(batch.block_table[0, position // 16]) * 16 + position % 16
    broken = torch.full((1, 2, 24), NAN, dtype=dtypes[0])
    kv_write(broken, broken, batch.cache, torch.tensor([slot]))
    out = batch.run(paged_attention, 30)
    sees = torch.zeros(91, dtype=torch.bool)
    sees[position - 230 : position - 230 + 30] = True
    assert out[sees].isnan().all()
    assert torch.equal(out[~sees], clean[~sees])


def test_extreme_scores(tier: str) -> None:
    """Rows that see next to one key only, rows that see all alike, and scores near overflow."""
    shape = {"num_kv_heads": 1, "group": 1, "head_dim": 16, "block_size": 16, "window": None}
    batch = make(random.Random(5), [(1, 600), (20, 600)], shape)
    query = batch.query
    for factor in (100.0, -100.0, 0.0):
        batch.query = query * factor
        expected = batch.dense_attention(None, None)
        out = batch.run(paged_attention)
        torch.testing.assert_close(out.double(), expected, atol=1e-3, rtol=1e-3)
    batch.query = query * 1e36
    assert batch.run(paged_attention).isfinite().all()


def test_program_reads_the_step_anew(tier: str) -> None:
    """Recorded once over buffers of the largest step, run with what each step puts into them."""
    shape = {"num_kv_heads": 2, "group": 2, "head_dim": 16, "block_size": 16, "window": None}
    batch = make(random.Random(6), [(5, 40), (1, 90), (7, 0)], shape)
    expected = batch.run(paged_attention)
    # A slice of a wider row, as the query's part of a projection.
    projected = torch.full((20, 9, 16), NAN)
    starts, seq_lens = torch.zeros(5, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    table = torch.zeros(4, batch.block_table.shape[1], dtype=torch.int32)
    out = torch.empty(20, 4, 16)
    query = projected[:, 2:6]
    program = Program()
    record_paged_attention(
        program, query, batch.cache, starts, seq_lens, table, out, scale=batch.scale, requests=1
    )
    for chunks in ([(0, 0, 5), (1, 0, 1), (2, 0, 7)], [(2, 3, 6)], [(1, 0, 1), (0, 4, 5)]):
        part = batch.part(chunks)
        count, tokens = len(chunks), len(part.query)
        query[:tokens] = part.query
        starts[: count + 1] = part.query_start_loc
        seq_lens[:count] = torch.tensor(part.seq_lens)
        table[:count] = part.block_table
        out.fill_(NAN)
        program.run(0, count)
        assert torch.equal(
            out[:tokens], torch.cat([batch.rows(expected, *chunk) for chunk in chunks])
        )
        assert out[tokens:].isnan().all()


@given(
    st.sampled_from([dtypes for dtypes in DTYPES if dtypes[1] != INT8]),
    st.integers(0, 40),
    st.sampled_from([8, 72]),
    st.integers(0, 99),
)
@MANY
def test_kv_write_writes_its_slots_and_no_others(
    tier: str, dtypes: tuple[torch.dtype, torch.dtype], num_tokens: int, head_dim: int, seed: int
) -> None:
    dtype, cache_dtype = dtypes
    generator = torch.Generator().manual_seed(seed)
    num_blocks, num_kv_heads, block_size = 4, 3, 32
    cache = torch.full((2, num_blocks, num_kv_heads, block_size, head_dim), NAN, dtype=cache_dtype)
    heads = torch.randn(num_tokens, 9, head_dim, generator=generator).to(dtype)
    key, value = heads[:, 3:6], heads[:, 6:]
    slots = torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens]
    kv_write(key, value, cache, slots)
    # Pages of keys are panels of 16 tokens: [head_dim / pair][16][pair].
    pair = 2 if cache_dtype == BF16 else 1
    panels = cache[0].view(num_blocks, num_kv_heads, -1, head_dim // pair, 16, pair)
    keys = panels.permute(0, 2, 4, 1, 3, 5).reshape(-1, num_kv_heads, head_dim)
    values = cache[1].transpose(1, 2).reshape(-1, num_kv_heads, head_dim)
    assert torch.equal(keys[slots], key.to(cache_dtype))
    assert torch.equal(values[slots], value.to(cache_dtype))
    others = torch.ones(num_blocks * block_size, dtype=torch.bool)
    others[slots] = False
    assert keys[others].isnan().all()
    assert values[others].isnan().all()


def test_int8_pages(tier: str) -> None:
    """Panels of 16 tokens, then their scales; zeros and tiny values are stored as zeros."""
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 48, 1, 24, generator=generator)
    key[3] = 0.0
    value[5] = 1e-40
    cache = torch.full((2, 3, 1, 16, token_size(24, INT8)), -1, dtype=INT8)
    kv_write(key, value, cache, torch.arange(48))
    panels = cache.view(2, 3, 16 * 28)
    scales = panels[:, :, 16 * 24 :].contiguous().view(F32).view(2, 48, 1)
    keys = panels[0, :, : 16 * 24].reshape(3, 24, 16).transpose(1, 2).reshape(48, 24)
    values = panels[1, :, : 16 * 24].reshape(48, 24)
    for got, scale, x in ((keys, scales[0], key[:, 0]), (values, scales[1], value[:, 0])):
        assert torch.equal(scale, x.abs().amax(-1, keepdim=True) / 127)
        assert got.abs().max() == 127
        bound = x.abs().amax(-1, keepdim=True) / 127 * 0.5001 + 1e-38
        assert ((got * scale - x).abs() <= bound).all()


@pytest.mark.parametrize(
    ("head_dim", "block_size", "dtype", "message"),
    [
        (20, 16, F32, "head_dim 20 is not a multiple of 8"),
        (264, 16, F32, "head_dim 264 is not a multiple of 8 up to 256"),
        (64, 24, F32, "block_size 24 is not a multiple of 16"),
        (64, 16, torch.float64, "no torch.float64 KV cache"),
    ],
)
def test_unsupported_caches_are_refused(
    tier: str, head_dim: int, block_size: int, dtype: torch.dtype, message: str
) -> None:
    cache = torch.zeros(2, 3, 1, block_size, head_dim, dtype=dtype)
    heads = torch.zeros(1, 1, head_dim)
    with pytest.raises(ValueError, match=message):
        record_kv_write(Program(), heads, heads, cache, torch.zeros(1, dtype=torch.int64))
    ints = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        record_paged_attention(
            Program(), heads, cache, ints, ints[:1], ints.view(1, 2), heads, scale=1.0
        )
