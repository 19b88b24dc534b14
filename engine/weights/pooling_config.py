"""Whether a model generates, embeds or scores: from its files, and from what the user says.

sentence-transformers lists a model's modules in `modules.json`, and has the settings of pooling in
a folder that is named there.
"""

import dataclasses
import json
from typing import Any, Final

from pagelet.engine.model_config import ModelConfig, PoolingConfig
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.fields import Fields
from pagelet.protocol.config import ModelOptions
from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.pooling import PoolingType

_MODULES: Final = ("Transformer", "Pooling", "Normalize")
_MODES: Final[dict[str, PoolingType]] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


def with_task(config: ModelConfig, files: ModelFiles, options: ModelOptions) -> ModelConfig:
    """The configuration for what the model is to do, by `--task` and its likes, else by its files.

    Raises ModelSourceError where the model cannot do that.
    """
    modules = _modules(files)
    task = options.task
    if task == "auto":
        if config.head == "score" or options.score_tokens:
            task = "score"
        elif config.head == "none" or modules is not None or config.pooling is not None:
            task = "embed"
        else:
            task = "generate"
    if options.score_tokens and task != "score":
        raise ModelSourceError(f"--score-tokens has no effect with --task {task}: leave one out")
    if task == "generate":
        if config.head != "lm":
            what = "only embeds" if config.head == "none" else "only scores"
            raise ModelSourceError(f"{files.path}: the model {what}: leave --task generate out")
        if options.pooling is not None:
            raise ModelSourceError("--pooling needs --task embed, as this model generates")
        return dataclasses.replace(config, pooling=None)
    if task == "score":
        return _scoring(config, files, options)
    own = _pooling_type(files, modules or []) or (config.pooling and config.pooling.pooling)
    pooling = PoolingConfig("embed", options.pooling or own or "last")
    return dataclasses.replace(config, head="none", pooling=pooling)


def _scoring(config: ModelConfig, files: ModelFiles, options: ModelOptions) -> ModelConfig:
    tokens = options.score_tokens
    if config.head == "score":
        if tokens:
            raise ModelSourceError(f"{files.path}: has scores of its own: leave --score-tokens out")
        return dataclasses.replace(
            config, pooling=PoolingConfig("score", options.pooling or "last")
        )
    if config.head == "none" or len(tokens) != 2:
        raise ModelSourceError(
            f"{files.path}: {config.architecture} has no scores. One that was trained to answer "
            "yes or no can score with --score-tokens no,yes; one that embeds, without --task score"
        )
    if options.pooling not in (None, "last"):
        raise ModelSourceError("--score-tokens looks at the last token: leave --pooling out")
    return dataclasses.replace(
        config, pooling=PoolingConfig("score", "last", (tokens[0], tokens[1]))
    )


def _modules(files: ModelFiles) -> list[dict[str, Any]] | None:
    """What `modules.json` lists, or None if there is none."""
    path = files.path / "modules.json"
    if files.format == "gguf" or not path.is_file():
        return None
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    except (ValueError, TypeError, KeyError, OSError, RecursionError) as error:
        raise ModelSourceError(f"{path}: is no list of modules: {error}") from error
    unknown = [kind for kind in kinds if kind not in _MODULES]
    if unknown:
        raise ModelSourceError(
            f"{path}: the module {unknown[0]} is not supported; supported: {', '.join(_MODULES)}"
        )
    return [module | {"type": kind} for module, kind in zip(modules, kinds, strict=True)]


def _pooling_type(files: ModelFiles, modules: list[dict[str, Any]]) -> PoolingType | None:
    """As sentence-transformers' settings of pooling say, if there are any."""
    for module in modules:
        if module["type"] != "Pooling":
            continue
        name = f"{module.get('path', '1_Pooling')}/config.json"
        path = files.path / name
        settings = files.json_object(name)
        if settings is None:
            raise ModelSourceError(f"{path}: is missing, though modules.json names its folder")
        fields = Fields(settings, str(path))
        chosen = [
            name for name in fields if name.startswith("pooling_mode_") and fields.boolean(name)
        ]
        if len(chosen) == 1 and chosen[0] in _MODES:
            return _MODES[chosen[0]]
        raise ModelSourceError(
            f"{path}: the pooling {', '.join(chosen) or 'none'} is not supported; supported is one "
            f"of {', '.join(_MODES)}"
        )
    return None
