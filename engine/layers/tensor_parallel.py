"""Over how many ranks a model can be divided; torch-free, to say so before anything starts."""

from pagelet.engine.model_config import ModelConfig


def supported_tensor_parallel_sizes(config: ModelConfig) -> list[int]:
    """Sizes that divide the query heads and the MLP, and either divide the KV heads or are a
    multiple of them (ranks then hold copies)."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    widths = [config.intermediate_size]
    if config.moe is not None:
        dense = config.moe.dense_layers
        widths = ([config.intermediate_size] if dense else []) + [config.moe.intermediate_size]
    return [
        size
        for size in range(1, heads + 1)
        if heads % size == 0
        and (kv_heads % size == 0 or size % kv_heads == 0)
        and all(width % size == 0 for width in widths)
    ]


def check_tensor_parallel(config: ModelConfig, size: int) -> None:
    """Raises ValueError, naming the sizes that work, if the model cannot be divided so."""
    sizes = supported_tensor_parallel_sizes(config)
    if size not in sizes:
        raise ValueError(
            f"tensor parallel size {size} does not fit this model ({config.num_heads} heads, "
            f"{config.num_kv_heads} KV heads, MLP width {config.intermediate_size}); sizes that "
            f"work: {', '.join(map(str, sizes))}"
        )


def kv_heads_per_rank(num_kv_heads: int, size: int) -> int:
    """KV heads that a rank computes and holds in its cache."""
    return max(1, num_kv_heads // size)
