"""A request's tokens and logprobs do not depend on what shares its steps: any mix of arrivals,
chunks, prefix hits, preemptions, drafts, adapters and aborts gives what the request gives alone. In
float64, so that rounding can neither hide a fault nor make one; and on the CPU library in every
format that it has, since there a row's bits are the same whatever shares its step."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.engine.core.core import EngineCore
from pagelet.engine.executor.inproc import InprocExecutor
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.protocol.config import LoraOptions
from pagelet.protocol.engine import EngineCoreOutput, EngineCoreRequest
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.speculation import SpeculationOptions
from support.adapters import random_adapter
from support.tiny_models import TINY, tiny_options

MAX_MODEL_LEN = 96
VOCAB = TINY["vocab_size"]
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 12},
    "Gemma3": {
        "num_hidden_layers": 6,
        "sliding_window": 9,
        "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2,
    },
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}


NUMERICS: dict[str, Any] = {
    "float32": ("float32", "none", "auto"),
    "bfloat16": ("bfloat16", "none", "auto"),
    "bfloat16 cache": ("float32", "none", "bfloat16"),
    "int8": ("bfloat16", "int8", "auto"),
    "int8 cache": ("bfloat16", "int8", "int8"),
    "int4": ("float32", "int4", "auto"),
}
"""dtype, quantization, dtype of the KV cache."""
CASES = [(kind, "float64") for kind in sorted(MODELS)] + [
    (kind, numerics) for kind in ("Gemma3", "Llama") for numerics in NUMERICS
]


NGRAM = SpeculationOptions(
    method="ngram", num_speculative_tokens=4, prompt_lookup_min=1, adaptive=False
)


@functools.cache
def model_config(kind: str) -> Any:
    return model_config_from_hf(
        {
            **TINY,
            **MODELS[kind],
            "architectures": [f"{kind}ForCausalLM"],
            "model_type": kind.lower(),
        }
    )


FOLDER = tempfile.TemporaryDirectory(prefix="pagelet-adapters-")


@pytest.fixture(scope="module", autouse=True)
def _folder_goes_with_the_tests():
    yield
    FOLDER.cleanup()


@functools.cache
def adapters(kind: str) -> list[LoraAdapter]:
    """Of different ranks; more than a step may have."""
    return [
        random_adapter(Path(FOLDER.name) / f"{kind}-{seed}", model_config(kind), seed, rank)
        for seed, rank in enumerate((3, 8, 1))
    ]


def make_core(
    kind: str,
    numerics: str,
    num_blocks: int,
    speculation: SpeculationOptions | None = None,
    **scheduler: Any,
) -> EngineCore:
    torch.set_num_threads(1)
    options = tiny_options(num_blocks=num_blocks, load_format="dummy")
    options.speculation = speculation
    options.lora = LoraOptions(enabled=True, max_loras=2, max_cpu_loras=2)
    if numerics != "float64":
        options.cache.block_size = 16
        dtype, quantization, kv_cache_dtype = NUMERICS[numerics]
        options.model.dtype, options.model.quantization = dtype, quantization
        options.cache.kv_cache_dtype = kv_cache_dtype
    for name, value in scheduler.items():
        setattr(options.scheduler, name, value)
    executor = InprocExecutor(lambda: ModelRunner(options, model_config(kind), None, MAX_MODEL_LEN))
    return EngineCore(options, executor, MAX_MODEL_LEN)


def make_request(kind: str, request_id: int, wanted: dict[str, Any]) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        external_id=str(request_id),
        prompt_token_ids=list(wanted["prompt"]),
        params=SamplingParams(**wanted["params"]),
        eos_token_ids=[1],
        priority=wanted["priority"],
        lora=None if (index := wanted.get("adapter")) is None else adapters(kind)[index],
    )


@functools.cache
def alone(kind: str, numerics: str, frozen: str) -> EngineCoreOutput:
    """One request's whole answer."""
    core = make_core(kind, numerics, 200, async_scheduling=False, max_num_batched_tokens=256)
    core.add(make_request(kind, 0, eval(frozen)))
    outputs = []
    try:
        while core.has_work:
            outputs += core.step().outputs
    finally:
        core.close()
    return joined(outputs)


def joined(outputs: list[EngineCoreOutput]) -> EngineCoreOutput:
    """What the steps brought, in one."""
    whole = EngineCoreOutput(0, [], None)
    for output in outputs:
        whole.new_token_ids += output.new_token_ids
        whole.finish_reason = output.finish_reason
        if output.logprobs is not None:
            assert len(output.logprobs) == len(output.new_token_ids)
            whole.logprobs = (whole.logprobs or []) + output.logprobs
    return whole


@st.composite
def sampling(draw: st.DrawFn) -> dict[str, Any]:
    params: dict[str, Any] = {
        "max_tokens": draw(st.integers(1, 12)),
        "temperature": draw(st.sampled_from([0.0, 0.7, 1.5])),
        "seed": draw(st.integers(0, 3)),
        "logprobs": draw(st.sampled_from([None, None, 2])),
    }
    extra: dict[str, st.SearchStrategy[Any]] = {
        "top_k": st.sampled_from([1, 5, 50]),
        "top_p": st.sampled_from([0.3, 0.9]),
        "min_p": st.just(0.05),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "presence_penalty": st.just(0.9),
        "frequency_penalty": st.just(-0.4),
        "min_tokens": st.integers(0, params["max_tokens"]),
        "logit_bias": st.just({3: 4.0, 1: 2.0}),
    }
    for name in draw(st.lists(st.sampled_from(sorted(extra)), max_size=3, unique=True)):
        params[name] = draw(extra[name])
    return params


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    head = draw(st.lists(st.integers(2, VOCAB - 1), min_size=0, max_size=30))
    tails = st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=20)
    requests = [
        {
            "prompt": (head if draw(st.booleans()) else []) + draw(tails),
            "params": draw(sampling()),
            "priority": draw(st.integers(0, 1)),
            "adapter": draw(st.sampled_from([None, None, 0, 1, 2])),
        }
        for _ in range(draw(st.integers(1, 6)))
    ]
    return {
        "requests": requests,
        "arrives": [draw(st.integers(0, 8)) for _ in requests],
        "aborted": [draw(st.sampled_from([None, None, None, 3, 9])) for _ in requests],
        "spare_blocks": draw(st.integers(0, 8)),
        "max_num_batched_tokens": draw(st.integers(1, 64)),
        "max_num_seqs": draw(st.integers(1, 6)),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
        "speculation": draw(st.sampled_from([None, NGRAM, NGRAM])),
    }


def blocks_needed(kind: str, numerics: str, budget: int) -> int:
    core = make_core(kind, numerics, 400)
    try:
        return core.kv.blocks_needed(MAX_MODEL_LEN, budget)
    finally:
        core.close()


@pytest.mark.parametrize(("kind", "numerics"), CASES)
@given(work=workloads())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_no_mix_changes_an_answer(kind: str, numerics: str, work: dict[str, Any]) -> None:
    core = make_core(
        kind,
        numerics,
        1 + blocks_needed(kind, numerics, work["max_num_batched_tokens"]) + work["spare_blocks"],
        work["speculation"],
        **{
            name: work[name]
            for name in ("max_num_batched_tokens", "max_num_seqs", "policy", "async_scheduling")
        },
    )
    outputs: dict[int, list[EngineCoreOutput]] = {i: [] for i in range(len(work["requests"]))}
    try:
        step = 0
        while core.has_work or step <= 9:
            for index, wanted in enumerate(work["requests"]):
                if work["arrives"][index] == step:
                    core.add(make_request(kind, index, wanted))
                if work["aborted"][index] == step:
                    core.abort([index])
            if core.has_work:
                for output in core.step().outputs:
                    outputs[output.request_id].append(output)
            core.kv.pool.check()
            step += 1
        assert core.kv.pool.num_free == core.kv.pool.num_usable
    finally:
        core.close()
    for index, wanted in enumerate(work["requests"]):
        theirs = alone(kind, numerics, repr(wanted))
        ours = joined(outputs[index])
        if work["aborted"][index] is None or ours.finish_reason is not None:
            assert ours.new_token_ids == theirs.new_token_ids
            assert ours.finish_reason == theirs.finish_reason
        else:
            assert ours.new_token_ids == theirs.new_token_ids[: len(ours.new_token_ids)]
        if theirs.logprobs is not None and ours.new_token_ids:
            assert ours.logprobs is not None
            for mine, other in zip(ours.logprobs, theirs.logprobs, strict=False):
                assert mine.token_ids == other.token_ids
                assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize(("kind", "numerics"), CASES)
def test_a_block_that_begins_alike_is_copied(kind: str, numerics: str) -> None:
    core = make_core(kind, numerics, 200)
    size = core.kv.block_size
    first = [2 + 7 * at % 60 for at in range(3 * size)]
    prompts = [first, first, [*first[: 2 * size + 5], 70, 71], first[: size + 3], [*first, 70, 71]]
    cached = [0, 3 * size - 1, 2 * size + 5, size + 2, 3 * size]
    try:
        for index, (prompt, hit) in enumerate(zip(prompts, cached, strict=True)):
            wanted = {
                "prompt": prompt,
                "params": {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True},
                "priority": 0,
            }
            core.add(make_request(kind, index, wanted))
            outputs = []
            while core.has_work:
                outputs += core.step().outputs
            assert outputs[0].num_cached_tokens == hit
            expected = alone(kind, numerics, repr(wanted)).new_token_ids
            assert joined(outputs).new_token_ids == expected
    finally:
        core.close()


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_the_adapters_change_answers(kind: str) -> None:
    """Likewise."""
    logprobs = set()
    for adapter in (None, 0, 1, 2):
        wanted = {
            "prompt": [5, 7, 8],
            "params": {"max_tokens": 1, "temperature": 0.0, "logprobs": 2},
            "priority": 0,
            "adapter": adapter,
        }
        answer = alone(kind, "float64", repr(wanted))
        assert answer.logprobs is not None
        logprobs.add(round(answer.logprobs[0].logprobs[0], 3))
    assert len(logprobs) == 4


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_the_tiny_models_look_at_their_context(kind: str) -> None:
    """Else the test above could not fail."""
    logprobs = []
    for first in range(10, 16):
        wanted = {
            "prompt": [first, 7, 8],
            "params": {"max_tokens": 4, "temperature": 0.0, "logprobs": 2},
            "priority": 0,
            "adapter": None,
        }
        answer = alone(kind, "float64", repr(wanted))
        assert answer.logprobs is not None
        logprobs.append(answer.logprobs[-1].logprobs[0])
    assert max(logprobs) - min(logprobs) > 0.01
