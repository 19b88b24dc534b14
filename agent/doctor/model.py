"""The model: whether its files are there, are understood, and have a tokenizer."""

from pagelet.agent.doctor.checks import Finding
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.errors import ModelSourceError


def check_model(source: str) -> Finding:
    """Of a model on the hub only the configuration and the tokenizer are downloaded."""
    try:
        files = resolve(source, weights=not source.startswith("hf://"))
        config = load_model_config(files)
        tokenizer = load_tokenizer(files)
    except ModelSourceError as error:
        return Finding(name="model", status="fail", summary=str(error))
    return Finding(
        name="model",
        status="ok",
        summary=f"{files.name}: {config.architecture}, {config.num_layers} layers, "
        f"{config.max_position_embeddings} positions, {tokenizer.vocab_size} tokens",
        facts={
            "name": files.name,
            "format": files.format,
            "architecture": config.architecture,
            "num_layers": config.num_layers,
            "max_position_embeddings": config.max_position_embeddings,
            "tokens": tokenizer.vocab_size,
            "has_chat_template": tokenizer.chat_template is not None,
        },
    )
