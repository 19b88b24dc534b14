"""Prefill and decode of an engine in this process, each alone."""

import collections
import contextlib
import dataclasses
import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from pagelet.bench.offline.limits import MachineLimits, ReadMeter
from pagelet.bench.offline.model_cost import ModelCost
from pagelet.bench.progress import Progress
from pagelet.engine.core.build import build_core
from pagelet.engine.core.core import EngineCore
from pagelet.engine.runner.device import choose_device, choose_dtype
from pagelet.engine.source import ModelFiles, resolve_model
from pagelet.engine.weights.dequantize import is_quantized
from pagelet.engine.weights.gguf_file import GGMLType, GGUFFile
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.sampling import SamplingParams

_BLOCK_SIZE: Final = 16
_WARM_UP_STEPS = 3
_TURNS = 5


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of what is measured, in tokens."""

    batches: Sequence[int] = (1, 4, 16)
    prompt_len: int = 256
    decode_steps: int = 160

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or self.prompt_len < 2:
            raise ValueError("batches of at least one request, with prompts of at least two tokens")

    @property
    def max_model_len(self) -> int:
        """Of a request, with room for the steps that are not measured."""
        return self.prompt_len + self.decode_steps + 2 * _WARM_UP_STEPS + 4


@dataclasses.dataclass(frozen=True)
class Measured:
    """One phase at one batch size."""

    phase: str
    batch: int
    tokens_per_second: float
    step_ms: float | None
    """Of a decode step; None for prefill, which may take several."""
    flops: float
    """A second."""
    gemm_share: float | None
    """Of the machine's rate for this type of weights."""
    read_bytes: float | None = None
    """A second, of weights and KV cache; None for prefill, which is bound by arithmetic."""
    read_share: float | None = None


def engine_options(
    model: ModelOptions, sizes: Sizes, scheduler: SchedulerOptions | None = None
) -> EngineOptions:
    """An engine whose KV cache holds the largest batch, without prefix caching, since prompts are
    to be computed."""
    blocks = max(sizes.batches) * (-(-sizes.max_model_len // _BLOCK_SIZE) + 1) + 1
    model.max_model_len = sizes.max_model_len
    return EngineOptions(
        model=model,
        cache=CacheOptions(
            block_size=_BLOCK_SIZE, num_blocks=2 * blocks, enable_prefix_caching=False
        ),
        scheduler=scheduler or SchedulerOptions(max_num_seqs=max(sizes.batches)),
    )


def model_cost(options: EngineOptions) -> tuple[ModelCost, torch.device]:
    """The cost of the model in the type that the engine chooses for it, and its device."""
    files = resolve_model(options)
    config = load_model_config(files)
    device = choose_device(options.device)
    dtype = choose_dtype(options.model, config.checkpoint_dtype, device)
    kind: str | None = options.model.quantization
    head: str | None = kind
    if kind == "auto":
        kept = device.type == "cpu" and options.model.load_format != "dummy"
        kind, head = _kept_kinds(files) if kept else (None, None)
    elif kind in ("int8", "int4"):  # as the engine chooses: few bits would harm the head most
        head = "int8" if device.type == "cpu" else None
    floats = str(dtype).removeprefix("torch.")
    kind, head = (floats if found in (None, "none") else found for found in (kind, head))
    return ModelCost(config, kind, 8 * dtype.itemsize, head), device


def _kept_kinds(files: ModelFiles) -> tuple[str | None, str | None]:
    """Of most of the layers' weights that the file has quantised, and of the head's, which may be
    the embedding; None for floats."""
    if files.format != "gguf":
        return None, None
    elements: collections.Counter[str | None] = collections.Counter()
    tables = {}
    for path in files.weight_files():
        for tensor in GGUFFile(path).tensors.values():
            if tensor.name.startswith("blk."):
                elements[_kind(tensor.ggml_type)] += math.prod(tensor.shape)
            tables[tensor.name] = _kind(tensor.ggml_type)
    head = tables.get("output.weight", tables["token_embd.weight"])
    return elements.most_common(1)[0][0], head


def _kind(ggml_type: GGMLType) -> str | None:
    """Blocks of 4 bits stay so, all others have 8."""
    if not is_quantized(ggml_type):
        return None
    return "int4" if ggml_type in (GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q4_K) else "int8"


def measure(
    options: EngineOptions,
    sizes: Sizes,
    cost: ModelCost,
    limits: MachineLimits,
    progress: Progress,
) -> Iterator[Measured]:
    """Loads the model, warms up, and yields prefill and decode of each batch size.

    Raises `ConfigurationError` if the model cannot be loaded so.
    """
    with contextlib.closing(build_core(options, progress)) as core:
        device = choose_device(options.device)
        read_rate = ReadMeter(device).rate if device.type == "cpu" else None
        yield from measure_core(core, sizes, cost, limits, progress, read_rate)


def measure_core(
    core: EngineCore,
    sizes: Sizes,
    cost: ModelCost,
    limits: MachineLimits,
    progress: Progress,
    read_rate: Callable[[], float] | None = None,
) -> Iterator[Measured]:
    """As `measure`, of an engine core that has loaded its model. `read_rate` measures what memory
    gives at the moment; without it that of `limits` stands, as on a GPU, which no other work slows
    from second to second and whose memory is the engine's."""
    read_rate = read_rate or (lambda: limits.read_bytes)
    gemm = limits.gemm(cost.kind)
    source = _Requests(core, cost.config.vocab_size)
    progress("warming up")
    source.prefill(max(sizes.batches), sizes.prompt_len, 2)
    for batch in sizes.batches:
        progress(f"prefill of {batch} x {sizes.prompt_len} tokens")
        seconds = source.prefill(batch, sizes.prompt_len, 1)
        flops = cost.prefill_flops(batch, sizes.prompt_len) / seconds
        yield Measured(
            "prefill",
            batch,
            batch * sizes.prompt_len / seconds,
            None,
            flops,
            gemm and flops / gemm,
        )
        progress(f"decode of {batch}")
        seconds, possible = source.decode(batch, sizes.prompt_len, sizes.decode_steps, read_rate)
        context = sizes.prompt_len + _WARM_UP_STEPS + sizes.decode_steps // 2
        flops = cost.decode_flops(batch, context) / seconds
        read = cost.decode_bytes(batch, context) / seconds
        yield Measured(
            "decode",
            batch,
            batch / seconds,
            seconds * 1e3,
            flops,
            gemm and flops / gemm,
            read,
            cost.decode_bytes(batch, context) / possible,
        )


class _Requests:
    """Requests of random tokens for an engine core, and the time that their steps take."""

    def __init__(self, core: EngineCore, vocab_size: int) -> None:
        self._core = core
        self._vocab_size = vocab_size
        self._ids = itertools.count()
        self._random = random.Random(0)

    def prefill(self, batch: int, prompt_len: int, max_tokens: int) -> float:
        """Seconds until all requests have ended."""
        self._add(batch, prompt_len, max_tokens)
        with _quiet():
            begin = time.perf_counter()
            while self._core.has_work:
                self._core.step()
            return time.perf_counter() - begin

    def decode(
        self, batch: int, prompt_len: int, num_steps: int, read_rate: Callable[[], float]
    ) -> tuple[float, float]:
        """Seconds a step, on average over `num_steps`, in which every request gets a token; and the
        bytes that memory gave in the time of a step. What memory gives changes with other work on
        the host from second to second: the two are measured in turns, and the median counts."""
        self._add(batch, prompt_len, num_steps + 2 * _WARM_UP_STEPS + 2)
        started: set[int] = set()
        while len(started) < batch:
            started.update(output.request_id for output in self._core.step().outputs)
        for _ in range(_WARM_UP_STEPS):
            self._core.step()
        spent, tokens, given = 0.0, 0, []
        for steps in _turns(num_steps):
            rate = read_rate()
            with _quiet():
                begin = time.perf_counter()
                drawn = 0
                for _ in range(steps):
                    drawn += sum(len(out.new_token_ids) for out in self._core.step().outputs)
                seconds = time.perf_counter() - begin
            given.append(rate * seconds * batch / drawn)
            spent, tokens = spent + seconds, tokens + drawn
        self._core.abort_all()
        while self._core.has_work:
            self._core.step()
        return spent * batch / tokens, statistics.median(given)

    def _add(self, batch: int, prompt_len: int, max_tokens: int) -> None:
        for _ in range(batch):
            prompt = self._random.choices(range(self._vocab_size), k=prompt_len)
            request_id = next(self._ids)
            self._core.add(
                EngineCoreRequest(
                    request_id=request_id,
                    external_id=str(request_id),
                    prompt_token_ids=prompt,
                    params=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
                    arrival_time=time.monotonic(),
                )
            )


def _turns(num_steps: int) -> list[int]:
    """Steps in each turn, of at most five."""
    turns = min(_TURNS, num_steps)
    return [num_steps * (turn + 1) // turns - num_steps * turn // turns for turn in range(turns)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without collections of garbage, as in the engine core's process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
