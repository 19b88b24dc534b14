"""Over how many ranks a model can be divided; torch-free, to say so before anything starts."""

from pagelet.engine.model_config import ModelConfig


def supported_tensor_parallel_sizes(
    config: ModelConfig, *, expert_parallel: bool = False
) -> list[int]:
    """Sizes that divide the query heads and the MLP (with expert parallelism the number of experts
    in place of their width), and either divide the KV heads or are a multiple of them (ranks then
    hold copies)."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    widths = [config.intermediate_size]
    if (moe := config.moe) is not None:
        widths = [moe.num_experts if expert_parallel else moe.intermediate_size]
        if moe.dense_layers:
            widths.append(config.intermediate_size)
    return [
        size
        for size in range(1, heads + 1)
        if heads % size == 0
        and (kv_heads % size == 0 or size % kv_heads == 0)
        and all(width % size == 0 for width in widths)
    ]


def check_tensor_parallel(config: ModelConfig, size: int, *, expert_parallel: bool = False) -> None:
    """Raises ValueError, naming the sizes that work, if the model cannot be divided so."""
    if expert_parallel and config.moe is None:
        raise ValueError(
            f"expert parallelism is for models with experts, which {config.architecture} has not: "
            "leave --enable-expert-parallel out"
        )
    sizes = supported_tensor_parallel_sizes(config, expert_parallel=expert_parallel)
    if size not in sizes:
        experts = ""
        if (moe := config.moe) is not None:
            experts = f", {moe.num_experts} experts of width {moe.intermediate_size}"
        raise ValueError(
            f"tensor parallel size {size} does not fit this model ({config.num_heads} heads, "
            f"{config.num_kv_heads} KV heads, MLP width {config.intermediate_size}{experts}); "
            f"sizes that work: {', '.join(map(str, sizes))}"
        )


def kv_heads_per_rank(num_kv_heads: int, size: int) -> int:
    """KV heads that a rank computes and holds in its cache."""
    return max(1, num_kv_heads // size)
