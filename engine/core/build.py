"""From options to an engine core."""

from collections.abc import Callable

from pagelet.engine.core.core import EngineCore
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.factory import make_executor
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.model_config import context_length
from pagelet.engine.source import ModelFiles, resolve, resolve_model, resolve_tokenizer
from pagelet.engine.speculation.vocabulary import check_vocabulary
from pagelet.engine.structured.store import GrammarStore
from pagelet.engine.structured.vocabulary import make_vocabulary
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.errors import ModelSourceError


def build_core(
    options: EngineOptions, stage: Callable[[str], None] = lambda text: None
) -> EngineCore:
    """Loads the model and makes the KV cache; `stage` is told what it is at.

    Raises `ConfigurationError` for whatever a new start would not help.
    """
    try:
        files = resolve_model(options, download_progress(stage))
        config = load_model_config(files, options.model)
        num_real_tokens = _num_real_tokens(options, files)
        _check_draft(options, files, download_progress(stage))
    except ModelSourceError as error:
        raise ConfigurationError(str(error)) from error
    max_model_len = context_length(config, options.model.max_model_len)
    grammars = GrammarStore(
        lambda: make_vocabulary(config, load_tokenizer(resolve_tokenizer(options, files)))
    )
    if options.runner == "model":
        grammars.preload()  # beside the weights, so that the first grammar need not wait for it
    executor = make_executor(options, files, config, max_model_len, stage, num_real_tokens)
    try:
        return EngineCore(options, executor, max_model_len, grammars)
    except BaseException:
        executor.close()
        raise


def _num_real_tokens(options: EngineOptions, files: ModelFiles) -> int | None:
    """Tokens of the tokenizer where it comes apart from the model, whose vocabulary may be padded
    beyond them (vllm-project/vllm#13175). A GGUF file's vocabulary is its tokenizer's."""
    own = options.model.tokenizer
    if options.runner == "simulated" or (own is None and files.format == "gguf"):
        return None
    return load_tokenizer(resolve_tokenizer(options, files)).max_token_id + 1


def _check_draft(
    options: EngineOptions, files: ModelFiles, progress: Callable[[int, int], None]
) -> None:
    """Finds, and has downloaded, the draft model that the options ask for, if any."""
    if options.speculation is None or options.speculation.model is None:
        return
    dummy = options.model.load_format == "dummy"
    draft = resolve(options.speculation.model, progress, weights=not dummy)
    if not dummy:
        model_tokenizer = load_tokenizer(resolve_tokenizer(options, files))
        check_vocabulary(model_tokenizer, load_tokenizer(draft))


def download_progress(stage: Callable[[str], None]) -> Callable[[int, int], None]:
    """A callback of `resolve_model` that tells `stage` how far a download is."""

    def progress(done: int, total: int) -> None:
        stage(f"downloading the model {100 * done // max(total, 1)}%")

    return progress
