"""A model's architecture as plain data, read from a checkpoint without importing torch.

The API process, the scheduler and the workers all read it: for limits and special tokens, for the
KV cache's layout, and to build the layers.
"""

import dataclasses
from typing import Any, Literal

from pagelet.engine.errors import ConfigurationError
from pagelet.protocol.pooling import PoolingType


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of one kind of layer; `scaling` is the checkpoint's dict, or None."""

    theta: float = 10000.0
    scaling: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """A sparse mixture of experts in place of the dense MLP."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    norm_topk_prob: bool
    """Whether the chosen experts' weights are rescaled to sum to 1."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that keep a dense MLP."""


@dataclasses.dataclass(frozen=True)
class PoolingConfig:
    """What a model that does not generate is for, and how a prompt's states become one vector."""

    task: Literal["embed", "score"]
    pooling: PoolingType = "last"
    score_tokens: tuple[str, str] | None = None
    """Of a generating model that scores: how it says no, and yes."""


@dataclasses.dataclass(frozen=True)
class WeightQuantization:
    """How a safetensors checkpoint stores those matrices that it has quantised; of each it has
    several tensors, whose names tell the quantised ones from the floats."""

    layout: Literal["scaled", "packed", "gptq", "awq"]
    """scaled: FP8 or int8 as they are, and scales; packed: integers in int32 words, as
    compressed-tensors packs them; gptq and awq: as their tools do."""
    bits: int = 8
    """Of gptq and awq; packed matrices tell theirs."""
    group_size: int | None = None
    """Inputs that share a scale, of gptq and awq; None: all of them."""
    block_shape: tuple[int, int] | None = None
    """Outputs and inputs of scaled matrices that share a scale; None: all inputs of an output, or
    the whole matrix."""
    zeros_less_one: bool = False
    """gptq: zero points are stored less one."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """One decoder-only transformer."""

    architecture: str
    """As Hugging Face names it, such as `LlamaForCausalLM`; GGUF's names are mapped to it."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None
    """Of sliding-window layers, where it differs (Gemma 3)."""
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    hidden_act: Literal["silu", "gelu_tanh"] = "silu"
    sliding_window: int | None = None
    sliding_layers: frozenset[int] = frozenset()
    """Layers that attend to the last `sliding_window` tokens only."""
    attention_scale: float | None = None
    """Factor of the scores; None means head_dim ** -0.5."""
    attention_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    embedding_scale: float | None = None
    norm_plus_one: bool = False
    """RMSNorm multiplies by 1 + weight (Gemma)."""
    moe: MoEConfig | None = None
    checkpoint_dtype: str = "bfloat16"
    """Of the weights that are not quantised."""
    quantization: WeightQuantization | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    head: Literal["lm", "none", "score"] = "lm"
    """What follows the last layer: the language-model head; nothing, for embeddings; or a linear
    layer to `num_labels` scores, as of transformers' `...ForSequenceClassification`."""
    num_labels: int = 0
    pooling: PoolingConfig | None = None
    """Set for a model that embeds or scores in place of generating."""
    generation_defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Sampling defaults of generation_config.json: temperature, top_p, top_k, ..."""

    def window(self, layer: int) -> int | None:
        """Tokens that a layer attends to, itself included; None for all."""
        return self.sliding_window if layer in self.sliding_layers else None


def context_length(config: ModelConfig, asked: int | None) -> int:
    """The longest prompt and answer together, in tokens: as asked for, or as the model was made
    for. Raises `ConfigurationError` if more is asked for than that."""
    limit = config.max_position_embeddings
    if asked is not None and asked > limit:
        raise ConfigurationError(
            f"--max-model-len {asked} is more than the model's {limit} positions: "
            f"lower it to {limit}"
        )
    return asked or limit
