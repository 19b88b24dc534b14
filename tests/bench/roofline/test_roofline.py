"""The roofline: models' known sizes, bounds that always hold, and its answers at their edges."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pagelet.bench.cli import app
from pagelet.bench.offline.limits import MachineLimits
from pagelet.bench.offline.measure import Measured, Sizes
from pagelet.bench.offline.model_cost import ModelCost
from pagelet.bench.roofline import measured
from pagelet.bench.roofline.command import simulated_flags
from pagelet.bench.roofline.hardware import GPUS, find_gpu
from pagelet.bench.roofline.model import LIMIT, Assumptions, Roofline
from pagelet.bench.roofline.presets import PRESETS, find_model
from pagelet.bench.roofline.scenarios import (
    STREAMS,
    TOKENS_PER_SECOND,
    TTFT_SECONDS,
    coder_on_a100s,
    first_token,
    throughput,
)
from pagelet.bench.routing.replica import Hardware as ReplicaHardware
from pagelet.engine.step_time import StepTime
from pagelet.protocol.config import ModelOptions

PARAMETERS = {  # billions, as published
    "qwen2.5-0.5b": 0.494,
    "qwen2.5-3b": 3.086,
    "qwen2.5-coder-32b": 32.76,
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "qwen3-8b": 8.19,
    "qwen3-30b-a3b": 30.53,
    "mixtral-8x7b": 46.70,
}


def make(model: str = "llama-3.1-8b", gpu: str = "h200", tp: int = 1, **assumed: Any) -> Roofline:
    cost = ModelCost(find_model(model), "bfloat16", 16)
    return Roofline(cost, find_gpu(gpu), tp, dataclasses.replace(LIMIT, **assumed))


def test_presets_have_the_published_sizes() -> None:
    assert set(PARAMETERS) == set(PRESETS)
    for name, billions in PARAMETERS.items():
        assert make(name).cost.weight_bytes / 2e9 == pytest.approx(billions, rel=1e-3)
    active = make("qwen3-30b-a3b").cost.decode_flops(1, 0) / 2e9
    assert active == pytest.approx(3.35 - 0.31, rel=1e-2)  # without the embedding's table


def test_one_stream_of_a_dense_model_is_as_fast_as_its_weights_are_read() -> None:
    roofline = make("llama-3.1-8b", "h100")
    read = 2 * (8.03e9 - 128_256 * 4096)
    assert roofline.decode_seconds(1, 0) == pytest.approx(read / 3350e9, rel=1e-3)
    cached = roofline.decode_seconds(1, 1000) - roofline.decode_seconds(1, 0)
    assert cached == pytest.approx(1000 * 131_072 / 3350e9, rel=1e-3)


def test_gpus_divide_the_cache_as_far_as_there_are_heads() -> None:
    assert make("qwen2.5-coder-32b", tp=4).kv_token_bytes == 262_144 / 4
    one = make("qwen2.5-3b").kv_token_bytes
    assert make("qwen2.5-3b", tp=2).kv_token_bytes == one / 2
    assert make("qwen2.5-3b", tp=4).kv_token_bytes == one / 2  # 2 KV heads, held twice
    with pytest.raises(ValueError, match="sizes that work"):
        make("llama-3.1-8b", tp=3)


@given(
    model=st.sampled_from(sorted(PRESETS)),
    gpu=st.sampled_from(sorted(GPUS)),
    batch=st.integers(1, 512),
    context=st.integers(0, 20_000),
    prompt=st.integers(1, 9000),
    cached_share=st.floats(0, 0.99),
)
def test_what_is_expected_is_within_the_limit(
    model: str, gpu: str, batch: int, context: int, prompt: int, cached_share: float
) -> None:
    cost = ModelCost(find_model(model), "bfloat16", 16)
    limit, expected = (Roofline(cost, GPUS[gpu], 1, each) for each in (LIMIT, Assumptions()))
    step = limit.decode_seconds(batch, context)
    assert step <= expected.decode_seconds(batch, context)
    hardware = GPUS[gpu]
    assert step >= cost.decode_bytes(batch, context) / hardware.read_bytes * (1 - 1e-9)
    assert step <= limit.decode_seconds(batch + 1, context)
    assert step <= limit.decode_seconds(batch, context + 1)
    cached = int(prompt * cached_share)
    first = limit.ttft_seconds(prompt, cached)
    assert 0 < first <= expected.ttft_seconds(prompt, cached)
    assert first <= limit.ttft_seconds(prompt) * (1 + 1e-9)
    flops = cost.chunk_flops(cached, prompt)
    assert first >= 0.99 * flops / hardware.rate("bfloat16")


def test_the_largest_batch_just_fits() -> None:
    roofline = make("llama-3.1-8b", "l4", memory_utilization=0.95, activation_bytes=1e9)
    batch = roofline.largest_batch(1000)
    per_request = 1000 * roofline.kv_token_bytes
    assert batch * per_request <= roofline.kv_cache_bytes < (batch + 1) * per_request
    assert make("llama-3.1-70b", "a100").largest_batch(1) == 0


def test_quantised_integers_are_widened_on_gpus_and_fp8_is_not() -> None:
    h100 = GPUS["h100"]
    assert h100.rate("int8") == h100.rate("int4") == h100.rate("bfloat16") < h100.rate("fp8")
    assert GPUS["a100"].rate("fp8") == GPUS["a100"].rate("bfloat16")


@pytest.mark.parametrize("assumed", [LIMIT, Assumptions()])
def test_the_scenarios_hold_up_to_where_they_say(assumed: Assumptions) -> None:
    roofline = coder_on_a100s(assumed)
    answer = first_token(roofline, 8192)
    new = int(answer.words.split(" new")[0].split()[-1].replace(",", ""))
    assert answer.holds
    assert roofline.ttft_seconds(8192, 8192 - new) < TTFT_SECONDS
    assert roofline.ttft_seconds(8192, 8192 - new - 1) >= TTFT_SECONDS
    answer = throughput(roofline)
    context = int(answer.words.split(" tokens")[0].split()[-1].replace(",", ""))
    assert answer.holds

    def enough(context: int) -> bool:
        fits = roofline.largest_batch(context) >= STREAMS
        return fits and roofline.decode_tokens_per_second(STREAMS, context) >= TOKENS_PER_SECOND

    assert enough(context)
    assert not enough(context + 1)


def test_what_cannot_be_is_answered_with_no() -> None:
    slow = make("llama-3.1-8b", "l4", step_seconds=0.5)
    assert not throughput(slow).holds
    assert not first_token(slow, 100).holds


def test_the_simulated_runner_takes_the_expected_time() -> None:
    roofline = make("llama-3.1-8b", "h100", step_seconds=1e-3)
    words = simulated_flags(roofline).split()
    values = {
        name.removeprefix("--simulated-").replace("-", "_"): float(value)
        for name, value in zip(words[2::2], words[3::2], strict=True)
    }
    time = StepTime(**values)
    for batch in (1, 8, 600):
        predicted = roofline.decode_seconds(batch, 500)
        assert time.seconds(batch, batch * 500) == pytest.approx(predicted, rel=0.01)


def test_a_step_is_bound_by_weights_then_by_tokens() -> None:
    time = StepTime(1.0, 0.25, 0.01, 2.0)
    assert time.seconds(1) == time.seconds(8) == 3.0
    assert time.seconds(16, 100) == 1 + 4 + 1
    assert ReplicaHardware(0.5, 0.25).step(8) == StepTime(0.5, 0.25).seconds(8) == 2.5


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["model", *arguments])


def test_the_command_reads_a_config_and_writes_its_figures(tmp_path: Path) -> None:
    config, out = tmp_path / "config.json", tmp_path / "out" / "figures.json"
    config.write_text(json.dumps(PRESETS["qwen2.5-0.5b"]))
    result = run("--model", str(config), "--gpu", "L4", "--batch", "3", "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "--simulated-weights-seconds" in result.output
    content = json.loads(out.read_text())
    assert content["decode"][0]["batch"] == 3
    assert content["decode"][0]["expected"] < content["decode"][0]["limit"]
    assert [row["cached"] for row in content["ttft"]] == [0, 1024, 1843]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--gpu", "v100"], "there are: a100"),
        (["--model", "nope"], "qwen2.5-0.5b"),
        (["--tp", "3"], "sizes that work"),
    ],
)
def test_the_command_says_what_there_is_instead(arguments: list[str], named: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert named in " ".join(result.output.split())


def test_the_command_tells_its_guesses_in_words() -> None:
    result = run("--read-efficiency", "0.29", "--flops-efficiency", "0.5")
    *_, guesses = result.stdout.partition("with these guesses:")
    for words in ("29 % of the memory's rate", "50 % of the matrix rate", "1 ms", "10 us", "2 GB"):
        assert words in guesses
    assert "{" not in guesses


def test_the_command_says_when_the_weights_do_not_fit() -> None:
    result = run("--model", "llama-3.1-70b", "--gpu", "l4")
    assert result.exit_code == 0
    assert "the weights do not fit" in result.output


def test_measured_steps_stand_beside_their_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = ModelCost(find_model("qwen2.5-0.5b"), "int8", 16)
    limits = MachineLimits(10e9, {"int8": 1e12})

    def measure(*_: object) -> Iterator[Measured]:
        yield Measured("prefill", 2, 1024.0, None, 0.0, None)
        yield Measured("decode", 2, 40.0, 50.0, 0.0, None)

    monkeypatch.setattr(measured, "model_cost", lambda options: (cost, None))
    monkeypatch.setattr(measured, "measure_limits", lambda device, progress: limits)
    monkeypatch.setattr(measured, "measure", measure)
    sizes = Sizes([2], prompt_len=512, decode_steps=64)
    prefill, decode = measured.compare(ModelOptions(source="x"), sizes, LIMIT, lambda text: None)
    assert (prefill.measured, decode.measured) == (1.0, 0.05)
    assert prefill.predicted == pytest.approx(cost.prefill_flops(2, 512) / 1e12, rel=0.4)
    assert decode.predicted == pytest.approx(cost.decode_bytes(2, 544) / 10e9)
