"""A model divided over ranks gives what the whole one gives. Ranks are threads here."""

import dataclasses
import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagelet.engine.layers.context import ALONE, Ranks
from pagelet.engine.layers.pipeline import check_pipeline, stage_layers
from pagelet.engine.layers.tensor_parallel import (
    check_tensor_parallel,
    kv_heads_per_rank,
    supported_tensor_parallel_sizes,
)
from pagelet.engine.model_config import ModelConfig, MoEConfig
from pagelet.engine.models.registry import build_model
from support.models import CONFIGS, make_config, randomize
from support.paged import PagedHarness, compute_all, logits_of_all
from support.thread_ranks import thread_ranks


def run_rank(config: ModelConfig, ranks: Ranks) -> list[torch.Tensor]:
    """Logits of two sequences in random steps, which are the same ones on every rank; of a stage
    before the last nothing."""
    torch.set_num_threads(1)
    model = build_model(config, torch.float64, "cpu", ranks)
    randomize(model)
    rng = random.Random(0)
    num_kv_heads = kv_heads_per_rank(config.num_kv_heads, ranks.tp.size)
    harness = PagedHarness(config, torch.float64, rng, num_kv_heads=num_kv_heads)
    for length in (19, 8):
        harness.add([rng.randrange(config.vocab_size) for _ in range(length)])
    if ranks.pp.is_last:
        return logits_of_all(model, harness, rng)
    compute_all(harness, rng, model.forward)
    return []


LAYOUTS = [(2, 1, False), (4, 1, False), (8, 1, False), (1, 2, False), (2, 2, False), (1, 4, False)]
CASES = [(name, *layout) for name, layout in itertools.product(CONFIGS, LAYOUTS)] + [
    ("mixtral", 2, 1, True),
    ("mixtral", 4, 1, True),
    ("mixtral", 2, 2, True),
]


@pytest.mark.parametrize(("name", "tp_size", "pp_size", "expert_parallel"), CASES)
def test_ranks_together_equal_the_whole_model(
    name: str, tp_size: int, pp_size: int, expert_parallel: bool
) -> None:
    config = dataclasses.replace(CONFIGS[name], num_layers=1 + pp_size)
    expected = run_rank(config, ALONE)
    places = thread_ranks(tp_size, pp_size, expert_parallel=expert_parallel)
    with ThreadPoolExecutor(len(places)) as threads:
        of_ranks = list(threads.map(lambda ranks: run_rank(config, ranks), places))
    for logits_of_rank in of_ranks[-tp_size:]:
        for actual, whole in zip(logits_of_rank, expected, strict=True):
            assert whole.std() > 0.1
            assert actual.shape[1] == config.vocab_size
            torch.testing.assert_close(actual, whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_have_no_more_than_their_part(name: str) -> None:
    config = dataclasses.replace(CONFIGS[name], num_layers=4)
    experts = config.moe is not None and config.moe.num_experts % 2 == 0
    whole = build_model(config, torch.float32, "cpu")
    names = {weight.name for weight in whole.weights()}
    parts = [
        build_model(config, torch.float32, "cpu", ranks)
        for ranks in thread_ranks(2, 2, expert_parallel=experts)
    ]
    of_parts = [{weight.name for weight in part.weights()} for part in parts]
    assert set().union(*of_parts) == names
    of_stages = of_parts[0] | of_parts[1], of_parts[2] | of_parts[3]
    shared = {"model.embed_tokens.weight"} if config.tie_word_embeddings else set()
    assert of_stages[0] & of_stages[1] == shared
    for part in parts:
        assert part.weight_bytes < 0.55 * whole.weight_bytes
        assert len(part.layers) == 2


def test_dummy_weights_are_the_same_for_any_number_of_ranks() -> None:
    config = CONFIGS["biases"]
    whole = build_model(config, torch.float32, "cpu")
    whole.init_dummy(seed=3)
    halves = [build_model(config, torch.float32, "cpu", ranks) for ranks in thread_ranks(2, 1)]
    for half in halves:
        half.init_dummy(seed=3)
    rows = [model.layers[0].mlp.gate_up_proj.weight.tensor for model in (whole, *halves)]  # type: ignore[attr-defined]
    gates = torch.cat([half[:16] for half in rows[1:]])
    assert torch.equal(rows[0][:32], gates)
    assert rows[0].std() > 0.01
    other = build_model(config, torch.float32, "cpu")
    other.init_dummy(seed=4)
    assert whole.embed_tokens is not None
    assert other.embed_tokens is not None
    assert not torch.equal(other.embed_tokens.weight, whole.embed_tokens.weight)


def test_sizes_that_work() -> None:
    assert supported_tensor_parallel_sizes(make_config()) == [1, 2, 4, 8]
    nine = make_config(num_heads=9, num_kv_heads=3, intermediate_size=36)
    assert supported_tensor_parallel_sizes(nine) == [1, 3, 9]
    moe = make_config(architecture="MixtralForCausalLM", moe=MoEConfig(4, 2, 6, True))
    assert supported_tensor_parallel_sizes(moe) == [1, 2]
    assert supported_tensor_parallel_sizes(moe, expert_parallel=True) == [1, 2, 4]
    with pytest.raises(
        ValueError, match=r"size 2 does not fit .*9 heads.* sizes that work: 1, 3, 9"
    ):
        check_tensor_parallel(nine, 2)
    with pytest.raises(ValueError, match=r"4 experts of width 6.* sizes that work: 1, 2$"):
        check_tensor_parallel(moe, 4)
    with pytest.raises(ValueError, match="leave --enable-expert-parallel out"):
        check_tensor_parallel(make_config(), 1, expert_parallel=True)


def test_layers_of_stages_are_all_layers_and_even() -> None:
    for num_layers, size in itertools.product(range(1, 20), range(1, 6)):
        if size > num_layers:
            with pytest.raises(ValueError, match=f"give at most {num_layers}$"):
                check_pipeline(make_config(num_layers=num_layers), size)
            continue
        check_pipeline(make_config(num_layers=num_layers), size)
        stages = [stage_layers(num_layers, stage, size) for stage in range(size)]
        assert [layer for layers in stages for layer in layers] == list(range(num_layers))
        lengths = list(map(len, stages))
        assert max(lengths) - min(lengths) <= 1
        assert lengths[-1] == min(lengths)  # the last one has the head


def test_building_checks_the_sizes() -> None:
    with pytest.raises(ValueError, match="sizes that work: 1, 2, 4, 8"):
        build_model(make_config(), torch.float32, "cpu", thread_ranks(3, 1)[0])
    with pytest.raises(ValueError, match="give at most 2"):
        build_model(make_config(), torch.float32, "cpu", thread_ranks(1, 3)[0])
