"""The larger model that says the same."""

from pathlib import Path

import pytest
import torch
import transformers

from pagelet.bench.deepened import write_deepened
from support.tiny_models import tiny_transformers_model


@pytest.mark.parametrize("times", [2, 3])
def test_a_deepened_model_says_the_same(tmp_path: Path, times: int) -> None:
    original, deepened = tmp_path / "original", tmp_path / "deepened"
    deepened.mkdir()
    tiny_transformers_model("Llama").float().save_pretrained(original)
    write_deepened(str(original), deepened, times)
    few, many = (
        transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in (original, deepened)
    )
    assert many.dtype == torch.float32
    assert len(many.model.layers) == times * len(few.model.layers)
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        assert torch.equal(few(tokens).logits, many(tokens).logits)


def test_other_models_are_refused(tmp_path: Path) -> None:
    tiny_transformers_model("Qwen2").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Qwen2ForCausalLM; only a Llama"):
        write_deepened(str(tmp_path), tmp_path, 2)
