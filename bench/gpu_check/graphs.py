"""Tokens with CUDA graphs and without, on a small random model of each architecture."""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch

from pagelet.bench.gpu_check.check import Check
from pagelet.engine.core.core import EngineCore
from pagelet.engine.executor.inproc import InprocExecutor
from pagelet.engine.model_config import ModelConfig, MoEConfig, RopeConfig
from pagelet.engine.runner.graphs import GraphBackend
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.sampling import SamplingParams

_MAX_MODEL_LEN = 256
_ANSWER = 24
_PROMPTS = (3, 40, 1, 70, 17, 9)
"""Lengths; the steps mix prefills with decodes of growing and shrinking batches."""


def _config(architecture: str, **changes: Any) -> ModelConfig:
    return ModelConfig(
        **{
            "architecture": architecture,
            "hidden_size": 128,
            "num_layers": 3,
            "num_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 32,
            "intermediate_size": 256,
            "vocab_size": 1000,
            "max_position_embeddings": _MAX_MODEL_LEN,
            "rms_norm_eps": 1e-6,
            "rope": RopeConfig(),
            **changes,
        }
    )


_EXPERTS = MoEConfig(8, 2, 64, True)
CONFIGS = {
    "Llama": _config("LlamaForCausalLM"),
    "Mistral": _config("MistralForCausalLM", sliding_window=32, sliding_layers=frozenset(range(3))),
    "Qwen2": _config("Qwen2ForCausalLM", qkv_bias=True, tie_word_embeddings=True),
    "Qwen3": _config("Qwen3ForCausalLM", qk_norm=True),
    "Qwen3-MoE": _config("Qwen3MoeForCausalLM", qk_norm=True, moe=_EXPERTS),
    "Mixtral": _config("MixtralForCausalLM", moe=_EXPERTS),
    "Gemma3": _config(
        "Gemma3ForCausalLM",
        norm_plus_one=True,
        qk_norm=True,
        embedding_scale=128**0.5,
        hidden_act="gelu_tanh",
        sliding_window=32,
        sliding_layers=frozenset({0, 1}),
        local_rope=RopeConfig(theta=100.0),
    ),
}


def check_graphs(
    device: Literal["cpu", "cuda"],
    graphs: GraphBackend | None = None,
    configs: dict[str, ModelConfig] = CONFIGS,
) -> Iterator[Check]:
    """Float32, so that no two logits are equal but for rounding. `graphs` takes the place of the
    device's own."""
    for name, config in configs.items():
        with_graphs, words = answers(config, device, graphs, eager=False)
        eager, _ = answers(config, device, None, eager=True)
        same = sum(a == b for a, b in zip(with_graphs, eager, strict=True))
        yield Check(
            f"graph tokens, {name}",
            "passed" if same == len(eager) and "graphs of" in words else "failed",
            f"{same} of {len(eager)} answers of {_ANSWER} tokens are equal ({words})",
        )


def answers(
    config: ModelConfig,
    device: Literal["cpu", "cuda"],
    graphs: GraphBackend | None,
    *,
    eager: bool,
) -> tuple[list[list[int]], str]:
    """The tokens of requests that come one after another, and what ran them."""
    options = EngineOptions(
        model=ModelOptions(source="random", dtype="float32", load_format="dummy"),
        cache=CacheOptions(num_blocks=200),
        scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=64),
        device=device,
    )
    options.cuda.enforce_eager = eager
    executor = InprocExecutor(
        lambda: ModelRunner(options, config, None, _MAX_MODEL_LEN, graphs=graphs)
    )
    with contextlib.closing(EngineCore(options, executor, _MAX_MODEL_LEN)) as core:
        generator = torch.Generator().manual_seed(0)
        tokens: dict[int, list[int]] = {}
        for number, length in enumerate(_PROMPTS):
            prompt = torch.randint(config.vocab_size, (length,), generator=generator).tolist()
            params = SamplingParams(
                temperature=0.0 if number % 2 else 0.8,
                seed=number,
                max_tokens=_ANSWER,
                ignore_eos=True,
            )
            core.add(
                EngineCoreRequest(
                    request_id=number,
                    external_id=str(number),
                    prompt_token_ids=prompt,
                    params=params,
                )
            )
            tokens[number] = []
            for _ in range(3):
                _take(core, tokens)
        while core.has_work:
            _take(core, tokens)
    return [tokens[number] for number in sorted(tokens)], executor.info.kernels


def _take(core: EngineCore, tokens: dict[int, list[int]]) -> None:
    for output in core.step().outputs:
        if output.error is not None:
            raise RuntimeError(output.error)
        tokens[output.request_id] += output.new_token_ids
