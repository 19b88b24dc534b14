"""Every operation as a device runs it, against its reference on the same device."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from pagelet.bench.gpu_check.check import Check
from pagelet.kernels.dispatch import REFERENCE, Op
from pagelet.kernels.embedding import embedding
from pagelet.kernels.gated_activation import gelu_and_mul, silu_and_mul
from pagelet.kernels.kv_write.reference import kv_write
from pagelet.kernels.linear import grouped_linear
from pagelet.kernels.linear.grouped import GroupedWeight
from pagelet.kernels.lora import AdapterRows, AdapterTable, LowRank, add_adapters
from pagelet.kernels.moe import moe
from pagelet.kernels.moe.experts import GroupedExperts
from pagelet.kernels.paged_attention import paged_attention
from pagelet.kernels.paged_attention.pages import token_size
from pagelet.kernels.rms_norm import add_rms_norm, rms_norm
from pagelet.kernels.rotary import rotary_kv_write
from pagelet.kernels.sample import sample
from pagelet.kernels.token_mask import mask_tokens
from pagelet.kernels.top_logprobs import top_logprobs

TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Of an element, relative to the largest one of the result."""
_BLOCK, _BLOCKS, _HEADS, _KV_HEADS, _DIM = 16, 64, 32, 8, 128
_VOCAB, _HIDDEN = 32_000, 1024


class Maker:
    """Random tensors of one element type on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        values = torch.randn(shape, generator=self._generator)
        return values.to(dtype or self.dtype).to(self.device)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        """In [0, high)."""
        return torch.randint(high, shape, generator=self._generator).to(self.device)

    def uniform(self, *shape: int) -> torch.Tensor:
        """float64 in [0, 1)."""
        return torch.rand(shape, generator=self._generator, dtype=torch.float64).to(self.device)


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an operation."""

    name: str
    op: Op[..., Any]
    make: Callable[[Maker], tuple[tuple[Any, ...], dict[str, Any]]]
    changed: int | None = None
    """The argument that it changes in place; None if it returns its result."""
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)
    exact: bool = False


def _attention(
    query_lens: list[int],
    seq_lens: list[int],
    cache_dtype: torch.dtype | None = None,
    **options: Any,
) -> Callable[[Maker], tuple[tuple[Any, ...], dict[str, Any]]]:
    def make(maker: Maker) -> tuple[tuple[Any, ...], dict[str, Any]]:
        order = torch.randperm(_BLOCKS - 1, generator=torch.Generator().manual_seed(1)) + 1
        width = -(-max(seq_lens) // _BLOCK)
        table = torch.zeros(len(seq_lens), width, dtype=torch.int32)
        cache = _cache(maker, cache_dtype or maker.dtype)
        taken = 0
        for row, length in enumerate(seq_lens):
            blocks = -(-length // _BLOCK)
            table[row, :blocks] = order[taken : taken + blocks]
            taken += blocks
        starts = torch.tensor([0, *query_lens]).cumsum(0)
        tensors = [starts, torch.tensor(seq_lens), table]
        return (
            maker(int(starts[-1]), _HEADS, _DIM),
            cache,
            *(tensor.to(torch.int32).to(maker.device) for tensor in tensors),
        ), {
            "max_query_len": max(query_lens),
            "max_seq_len": max(seq_lens),
            "query_lens_cpu": query_lens,
            "seq_lens_cpu": seq_lens,
            "scale": _DIM**-0.5,
            **options,
        }

    return make


def _cache(maker: Maker, dtype: torch.dtype) -> torch.Tensor:
    """Full of keys and values, but for the null block, which nobody may read."""
    shape = 2, _BLOCKS, _KV_HEADS, _BLOCK, token_size(_DIM, dtype)
    if dtype == torch.int8:
        cache = torch.zeros(shape, dtype=dtype, device=maker.device)
        tokens = _BLOCK * _BLOCKS
        key, value = maker(tokens, _KV_HEADS, _DIM), maker(tokens, _KV_HEADS, _DIM)
        kv_write(key, value, cache, torch.arange(tokens, device=maker.device))
        cache[:, 0] = -1  # scales of NaN
        return cache
    values = maker(*shape)
    values[:, 0] = torch.nan
    return values.to(dtype)


def _adapters(tokens: int) -> Callable[[Maker], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Of three ranks, and rows without any."""

    def make(maker: Maker) -> tuple[tuple[Any, ...], dict[str, Any]]:
        sizes = [_HIDDEN, 256, 256]
        table = AdapterTable(4, sizes, 64, maker.device)
        for slot, rank in enumerate((8, 40, 64)):
            parts = [
                LowRank(maker(rank, _HIDDEN) * _HIDDEN**-0.5, maker(size, rank)) for size in sizes
            ]
            table.put(slot, [None, *parts[1:]] if slot == 1 else parts)
        rows = AdapterRows(tokens, maker.device)
        rows.set([(slot, torch.arange(slot, tokens, 4)) for slot in range(3)])
        return (maker(tokens, sum(sizes)), maker(tokens, _HIDDEN), table, rows), {}

    return make


def _rotary_kv_write(maker: Maker) -> tuple[tuple[Any, ...], dict[str, Any]]:
    angles = maker(33, _DIM // 2, dtype=torch.float32)
    order = torch.randperm(_BLOCKS * _BLOCK, generator=torch.Generator().manual_seed(2))
    cache = maker(2, _BLOCKS, _KV_HEADS, _BLOCK, _DIM)
    heads = torch.split(maker(33, _HEADS + 2 * _KV_HEADS, _DIM), [_HEADS, _KV_HEADS, _KV_HEADS], 1)
    return (*heads, angles.cos(), angles.sin(), cache, order[:33].to(maker.device)), {}


def _moe(tokens: int) -> Callable[[Maker], tuple[tuple[Any, ...], dict[str, Any]]]:
    def make(maker: Maker) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden, width, experts = 256, 128, 16
        return (
            maker(tokens, hidden),
            maker(tokens, experts),
            maker(experts, 2 * width, hidden) * hidden**-0.5,
            maker(experts, hidden, width) * width**-0.5,
            4,
            True,
        ), {}

    return make


def _quantized_linear(
    kind: Literal["int8", "fp8"], tokens: int
) -> Callable[[Maker], tuple[tuple[Any, ...], dict[str, Any]]]:
    def make(maker: Maker) -> tuple[tuple[Any, ...], dict[str, Any]]:
        weight = maker(512, _HIDDEN, dtype=torch.float32) * _HIDDEN**-0.5
        return (maker(tokens, _HIDDEN), GroupedWeight.from_floats(weight, kind)), {}

    return make


def _quantized_moe(tokens: int) -> Callable[[Maker], tuple[tuple[Any, ...], dict[str, Any]]]:
    def make(maker: Maker) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (x, router, *matrices, top_k, renormalize), options = _moe(tokens)(maker)
        quantized = [_quantized_experts(matrix) for matrix in matrices]
        return (x, router, *quantized, top_k, renormalize), options

    return make


def _quantized_experts(matrices: torch.Tensor) -> GroupedExperts:
    weights = [GroupedWeight.from_floats(matrix, "int8") for matrix in matrices]
    experts = GroupedExperts.empty(len(weights), matrices.shape[1], weights[0])
    for expert, weight in enumerate(weights):
        experts.put(expert, 0, weight)
    return experts


def _sample(maker: Maker) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rows = 12

    def column(*values: float) -> torch.Tensor:
        repeated = torch.tensor(values, dtype=torch.float64).repeat(rows // len(values))
        return repeated.to(maker.device)

    return (maker(rows, _VOCAB) * 3, column(0.0, 0.7, 1.0, 1.5), maker.uniform(rows)), {
        "min_p": column(0.0, 0.05),
        "top_k": column(0, 50, 1000).long(),
        "top_p": column(1.0, 0.9, 0.5, 1.0),
        "max_top_k": 1000,
    }


def _mask(maker: Maker) -> tuple[tuple[Any, ...], dict[str, Any]]:
    words = torch.randint(-(1 << 31), 1 << 31, (3, _VOCAB // 32), dtype=torch.int32)
    return (maker(8, _VOCAB), torch.tensor([0, 3, 6]), words), {}


_FLOAT = (torch.float32,)
CASES = [
    Case("rms_norm", rms_norm, lambda m: ((m(33, _HIDDEN), m(_HIDDEN), 1e-6), {})),
    Case(
        "add_rms_norm",
        add_rms_norm,
        lambda m: ((m(33, _HIDDEN), m(33, _HIDDEN), m(_HIDDEN), 1e-6, True), {}),
    ),
    Case("silu_and_mul", silu_and_mul, lambda m: ((m(33, 2 * _HIDDEN),), {})),
    Case("gelu_and_mul", gelu_and_mul, lambda m: ((m(33, 2 * _HIDDEN),), {})),
    Case("embedding", embedding, lambda m: ((m.integers(900, 33), m(500, _HIDDEN), 200), {})),
    Case("rotary and KV write", rotary_kv_write, _rotary_kv_write),
    Case("rotary and KV write, cache", rotary_kv_write, _rotary_kv_write, changed=5),
    Case("attention, decode", paged_attention, _attention([1] * 5, [1, 17, 300, 64, 129])),
    Case("attention, mixed", paged_attention, _attention([1, 37, 16, 1], [200, 37, 130, 15])),
    Case(
        "attention, window",
        paged_attention,
        _attention([1, 40, 1], [300, 150, 9], sliding_window=33),
    ),
    Case(
        "attention, soft cap",
        paged_attention,
        _attention([1, 40, 1], [300, 150, 9], softcap=20.0),
    ),
    Case("attention, split decode", paged_attention, _attention([1] * 2, [700, 200])),
    Case(
        "attention, FP8 cache",
        paged_attention,
        _attention([1, 5, 1], [300, 150, 9], cache_dtype=torch.float8_e4m3fn),
    ),
    Case(
        "attention, int8 cache",
        paged_attention,
        _attention([1, 5, 1], [300, 150, 9], cache_dtype=torch.int8),
    ),
    Case("adapters, decode", add_adapters, _adapters(13), changed=0),
    Case("adapters, prefill", add_adapters, _adapters(900), changed=0),
    Case("moe, decode", moe, _moe(3)),
    Case("moe, prefill", moe, _moe(70)),
    Case("moe of int8, decode", moe, _quantized_moe(3)),
    Case("moe of int8, prefill", moe, _quantized_moe(70)),
    Case("linear of int8, decode", grouped_linear, _quantized_linear("int8", 5)),
    Case("linear of int8, prefill", grouped_linear, _quantized_linear("int8", 130)),
    Case("linear of fp8, decode", grouped_linear, _quantized_linear("fp8", 5)),
    Case("linear of fp8, prefill", grouped_linear, _quantized_linear("fp8", 130)),
    Case("sample", sample, _sample, dtypes=_FLOAT, exact=True),
    Case("mask_tokens", mask_tokens, _mask, changed=0, dtypes=_FLOAT, exact=True),
    Case(
        "top_logprobs",
        top_logprobs,
        lambda m: ((m(8, _VOCAB), m.integers(_VOCAB, 8), 5), {}),
        dtypes=_FLOAT,
    ),
]


def check_kernels(
    device: torch.device, cases: list[Case] = CASES, skip: int = 0
) -> Iterator[Check]:
    """Each case in each element type, without the first `skip` of them; the words have the largest
    error."""
    number = 0
    for case in cases:
        for dtype in case.dtypes:
            number += 1
            if number <= skip:
                continue
            name = f"{case.name}, {str(dtype).removeprefix('torch.')}"
            limit = 0.0 if case.exact else TOLERANCE[dtype]
            try:
                error = _error(case, Maker(dtype, device))
            except Exception as failure:
                words = " ".join(f"{type(failure).__name__}: {failure}".split())
                yield Check(name, "failed", words[:300])
                continue
            within = error <= limit  # not if it is NaN
            yield Check(
                name,
                "passed" if within else "failed",
                f"largest error {error:.1e} of the largest element, at most {limit:.0e} allowed",
            )


def _error(case: Case, maker: Maker) -> float:
    args, kwargs = case.make(maker)
    expected = _call(case, case.op.implementations[REFERENCE], args, kwargs)
    actual = _call(case, case.op, args, kwargs)
    assert len(actual) == len(expected)
    return max(_difference(a, e) for a, e in zip(actual, expected, strict=True))


def _call(
    case: Case, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """On copies of the arguments."""
    args = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
    result = function(*args, **kwargs)
    if case.changed is not None:
        result = args[case.changed]
    return result if isinstance(result, tuple) else (result,)


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    if actual.shape != expected.shape:
        raise ValueError(f"shape {tuple(actual.shape)} in place of {tuple(expected.shape)}")
    finite = expected.isfinite()
    actual, expected = actual.double(), expected.double()
    if not torch.equal(actual[~finite], expected[~finite]):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = float(expected[finite].abs().max()) or 1.0
    return float((actual[finite] - expected[finite]).abs().max()) / largest
