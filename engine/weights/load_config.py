"""The architecture of resolved model files, torch-free."""

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.gguf_config import model_config_from_gguf
from pagelet.engine.weights.gguf_file import GGUFFile
from pagelet.engine.weights.hf_config import model_config_from_hf


def load_model_config(files: ModelFiles) -> ModelConfig:
    """Raises ModelSourceError where there is no model for the files, or they are damaged."""
    if files.format == "gguf":
        return model_config_from_gguf(GGUFFile(files.path))
    return model_config_from_hf(files.config(), files.generation_config())
