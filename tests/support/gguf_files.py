"""GGUF files written as llama.cpp's converter writes them, by the `gguf` package that it uses."""

from pathlib import Path

import gguf
import numpy as np
import torch

from pagelet.engine.model_config import ModelConfig

GGUF_NAMES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma3ForCausalLM": "gemma3",
}
TOKENS = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(124)), "<end_of_turn>"]


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The converter's order of q's and k's rows for the architecture llama."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> None:
    name = GGUF_NAMES[config.architecture]
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    if config.moe is not None:
        writer.add_expert_count(config.moe.num_experts)
        writer.add_expert_used_count(config.moe.num_experts_per_token)
        if name == "qwen3moe":
            writer.add_expert_feed_forward_length(config.moe.intermediate_size)
    if name == "gemma3":
        assert config.sliding_window is not None
        writer.add_sliding_window(config.sliding_window)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * 124 + [3])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for gguf_name, data in converted(config, weights).items():
        if data.ndim == 1 or quantization == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name, data)
        else:
            packed = quantised(data, quantization)
            writer.add_tensor(gguf_name, packed, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def converted(config: ModelConfig, weights: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    arch = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[GGUF_NAMES[config.architecture]]
    names = gguf.get_tensor_name_map(arch, config.num_layers)
    stacks: dict[str, dict[int, np.ndarray]] = {}
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in weights.items():
        data = tensor.numpy()
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            expert, _, projection = after.partition(".")
            stacks.setdefault(f"{before}.experts.{projection}", {})[int(expert)] = data
            continue
        if config.norm_plus_one and name.endswith("norm.weight"):
            data = data + 1
        if arch == gguf.MODEL_ARCH.LLAMA and ".q_proj." in name:
            data = interleaved(data, config.num_heads)
        if arch == gguf.MODEL_ARCH.LLAMA and ".k_proj." in name:
            data = interleaved(data, config.num_kv_heads)
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = data
    for name, stack in stacks.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        tensors[gguf_name] = np.stack([stack[i] for i in range(len(stack))])
    if config.rope.scaling is not None:
        tensors["rope_freqs.weight"] = llama3_divisors(config)
    return tensors


def llama3_divisors(config: ModelConfig) -> np.ndarray:
    """By how much transformers' frequencies are lower than unscaled ones."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert config.rope.scaling is not None
    theirs = transformers.LlamaConfig(
        hidden_size=config.num_heads * config.head_dim,
        num_attention_heads=config.num_heads,
        rope_parameters=config.rope.scaling | {"rope_theta": config.rope.theta},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    unscaled = config.rope.theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    return (unscaled / scaled.numpy()).astype(np.float32)


def quantised(data: np.ndarray, type_: gguf.GGMLQuantizationType) -> np.ndarray:
    """The weights in a type's blocks; random ones of about 0.1 for those that the package only
    reads."""
    try:
        return gguf.quants.quantize(data, type_)
    except NotImplementedError:
        places = {"Q4_K": {0: 4e-4, 2: 3e-3}, "Q5_K": {0: 2e-4, 2: 3e-3}, "Q6_K": {208: 7e-5}}
        size, num_bytes = gguf.GGML_QUANT_SIZES[type_]
        blocks = np.random.default_rng(data.size).integers(
            0, 256, (*data.shape[:-1], data.shape[-1] // size, num_bytes), dtype=np.uint8
        )
        for offset, scale in places[type_.name].items():
            blocks[..., offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
        return blocks.reshape(*data.shape[:-1], -1)
