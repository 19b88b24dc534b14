"""The architecture of resolved model files, torch-free."""

import dataclasses
from typing import Final

import safetensors

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.gguf_config import model_config_from_gguf
from pagelet.engine.weights.gguf_file import GGUFFile
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.engine.weights.pooling_config import with_task
from pagelet.protocol.config import ModelOptions
from pagelet.protocol.errors import ModelSourceError

_STORED_DTYPES: Final = {"BF16": "bfloat16", "F16": "float16", "F64": "float64"}


def load_model_config(files: ModelFiles, options: ModelOptions | None = None) -> ModelConfig:
    """Raises ModelSourceError where there is no model for the files, they are damaged, or the model
    cannot do what the options ask of it."""
    return with_task(_own_config(files), files, options or ModelOptions(source=str(files.path)))


def _own_config(files: ModelFiles) -> ModelConfig:
    if files.format == "gguf":
        return model_config_from_gguf(GGUFFile(files.path))
    raw, generation = files.config(), files.generation_config()
    try:
        config = model_config_from_hf(raw, generation)
    except ModelSourceError as error:
        raise ModelSourceError(f"{files.path}: {error}") from error
    if raw.keys() & {"dtype", "torch_dtype"} or not files.has_weights():
        return config
    return dataclasses.replace(config, checkpoint_dtype=_stored_dtype(files))


def _stored_dtype(files: ModelFiles) -> str:
    """Of the first tensor, as transformers does where the config doesn't say."""
    path = files.weight_files()[0]
    try:
        with safetensors.safe_open(path, framework="np") as shard:
            first = next(iter(shard.keys()), None)
            dtype = shard.get_slice(first).get_dtype() if first is not None else "F32"
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelSourceError(f"{path}: damaged: {error}; download it again") from error
    return _STORED_DTYPES.get(dtype, "float32")
