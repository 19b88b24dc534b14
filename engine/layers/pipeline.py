"""Which layers a pipeline stage holds; torch-free, to say so before anything starts."""

from pagelet.engine.model_config import ModelConfig


def stage_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """The layers of a stage (GPipe, arXiv 1811.06965). Layers that are left over go to the stages
    before the last, which has the language-model head beside its own."""
    share, left_over = divmod(num_layers, num_stages)
    first_larger = num_stages - 1 - left_over
    first = stage * share + max(0, min(stage - first_larger, left_over))
    is_larger = first_larger <= stage < num_stages - 1
    return range(first, first + share + is_larger)


def check_pipeline(config: ModelConfig, num_stages: int) -> None:
    """Raises ValueError if there are more stages than layers."""
    if num_stages > config.num_layers:
        raise ValueError(
            f"pipeline parallel size {num_stages} does not fit this model of {config.num_layers} "
            f"layers: give at most {config.num_layers}"
        )
