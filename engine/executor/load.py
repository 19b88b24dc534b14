"""From resolved model files to a runner; the same in this process and in a worker."""

from collections.abc import Callable

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.layers.context import ALONE, Ranks
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.iterate import iterate_weights
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.errors import ModelSourceError


def load_runner(
    options: EngineOptions,
    files: ModelFiles,
    config: ModelConfig,
    max_model_len: int,
    stage: Callable[[str], None],
    num_real_tokens: int | None = None,
    device_index: int = 0,
    ranks: Ranks = ALONE,
) -> ModelRunner:
    """Loads the model, telling `stage` how far it is. Raises `ConfigurationError`."""

    def progress(done: int, total: int) -> None:
        stage(f"loading weights {100 * done // max(total, 1)}%")

    dummy = options.model.load_format == "dummy"
    try:
        return ModelRunner(
            options,
            config,
            None if dummy else iterate_weights(files, config, progress),
            max_model_len,
            device_index=device_index,
            ranks=ranks,
            num_real_tokens=num_real_tokens,
            stage=stage,
        )
    except ModelSourceError as error:
        raise ConfigurationError(str(error)) from error
