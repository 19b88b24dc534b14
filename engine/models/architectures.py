"""The architectures that have a model here, torch-free: for errors, and for reading configs."""

from typing import Final

SUPPORTED_ARCHITECTURES: Final[tuple[str, ...]] = (
    "Gemma3ForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
