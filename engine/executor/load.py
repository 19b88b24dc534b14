"""From resolved model files to a runner; the same in this process and in a worker."""

from collections.abc import Callable

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.layers.context import ALONE, Ranks
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.draft_model import DraftSource
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.source import ModelFiles, resolve
from pagelet.engine.weights.iterate import iterate_weights
from pagelet.engine.weights.load_config import load_model_config
from pagelet.kernels.dispatch import check_setting
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

    try:
        check_setting()
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    try:
        return ModelRunner(
            options,
            config,
            None if _is_dummy(options) else iterate_weights(files, config, progress),
            max_model_len,
            device_index=device_index,
            ranks=ranks,
            num_real_tokens=num_real_tokens,
            stage=stage,
            draft=_draft_source(options, progress) if ranks.pp.is_last else None,
        )
    except ModelSourceError as error:
        raise ConfigurationError(str(error)) from error


def _is_dummy(options: EngineOptions) -> bool:
    return options.model.load_format == "dummy"


def _draft_source(
    options: EngineOptions, progress: Callable[[int, int], None]
) -> DraftSource | None:
    """The draft model that the options ask for, if any."""
    if options.speculation is None or options.speculation.model is None:
        return None
    dummy = _is_dummy(options)
    files = resolve(options.speculation.model, weights=not dummy)
    config = load_model_config(files)
    return DraftSource(config, None if dummy else iterate_weights(files, config, progress))
