"""Executors of tiny models with random weights, on any layout of ranks."""

from pathlib import Path

from pagelet.engine.executor.base import Executor
from pagelet.engine.executor.factory import make_executor
from pagelet.engine.model_config import ModelConfig, MoEConfig, RopeConfig
from pagelet.engine.source import ModelFiles
from pagelet.protocol.config import EngineOptions
from support.tiny_models import tiny_options

LLAMA = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=131,  # odd, so that the ranks' shares of the vocabulary differ
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    rope=RopeConfig(),
    checkpoint_dtype="float64",
)
MOE = ModelConfig(
    architecture="Qwen3MoeForCausalLM",
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=1,  # fewer than ranks: they hold copies
    head_dim=8,
    intermediate_size=48,
    vocab_size=131,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    rope=RopeConfig(),
    qk_norm=True,
    moe=MoEConfig(4, 2, 24, norm_topk_prob=True),
    checkpoint_dtype="float64",
)
NO_FILES = ModelFiles(Path("none"), "safetensors", "none")


def make_ranks(
    config: ModelConfig,
    tp_size: int,
    pp_size: int = 1,
    *,
    expert_parallel: bool = False,
    **cache: object,
) -> Executor:
    """The same model for every layout of ranks; `cache` changes its cache options."""
    return make_executor(
        ranks_options(tp_size, pp_size, expert_parallel=expert_parallel, **cache),
        NO_FILES,
        config,
        128,
    )


def ranks_options(
    tp_size: int, pp_size: int = 1, *, expert_parallel: bool = False, **cache: object
) -> EngineOptions:
    """Of `make_ranks`."""
    options = tiny_options(tensor_parallel_size=tp_size, load_format="dummy")
    options.parallel.pipeline_parallel_size = pp_size
    options.parallel.enable_expert_parallel = expert_parallel
    for name, value in cache.items():
        setattr(options.cache, name, value)
    return options
