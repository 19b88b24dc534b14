"""A model divided over ranks gives what the whole one gives. Ranks are threads here."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagelet.engine.layers.context import SINGLE, TensorParallel
from pagelet.engine.layers.tensor_parallel import (
    check_tensor_parallel,
    kv_heads_per_rank,
    supported_tensor_parallel_sizes,
)
from pagelet.engine.model_config import ModelConfig, MoEConfig
from pagelet.engine.models.registry import build_model
from support.models import CONFIGS, make_config, randomize
from support.paged import PagedHarness, logits_of_all


class ThreadGroup:
    """Collectives between threads: everyone lays down a copy, all read, all leave."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=30)
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size

    def rank(self, rank: int) -> TensorParallel:
        def exchange(x: torch.Tensor) -> list[torch.Tensor]:
            self.parts[rank] = x.clone()
            self.barrier.wait()
            parts = list(self.parts)
            self.barrier.wait()
            return parts

        def all_reduce(x: torch.Tensor) -> torch.Tensor:
            return x.copy_(torch.stack(exchange(x)).sum(0))

        def all_gather(x: torch.Tensor) -> torch.Tensor:
            return torch.cat(exchange(x), dim=-1)

        return TensorParallel(rank, self.size, all_reduce, all_gather)


def run_rank(config: ModelConfig, tp: TensorParallel) -> list[torch.Tensor]:
    """Logits of two sequences in random steps; every rank draws the same ones."""
    model = build_model(config, torch.float64, "cpu", tp)
    randomize(model)
    rng = random.Random(0)
    num_kv_heads = kv_heads_per_rank(config.num_kv_heads, tp.size)
    harness = PagedHarness(config, torch.float64, rng, num_kv_heads=num_kv_heads)
    for length in (19, 8):
        harness.add([rng.randrange(config.vocab_size) for _ in range(length)])
    return logits_of_all(model, harness, rng)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_together_equal_the_whole_model(name: str, size: int) -> None:
    config = CONFIGS[name]
    expected = run_rank(config, SINGLE)
    group = ThreadGroup(size)
    with ThreadPoolExecutor(size) as threads:
        of_ranks = list(threads.map(lambda rank: run_rank(config, group.rank(rank)), range(size)))
    for logits_of_rank in of_ranks:
        for actual, whole in zip(logits_of_rank, expected, strict=True):
            assert whole.std() > 0.1
            assert actual.shape[1] == config.vocab_size
            torch.testing.assert_close(actual, whole, atol=1e-10, rtol=0)


def test_dummy_weights_are_the_same_for_any_number_of_ranks() -> None:
    config = CONFIGS["biases"]
    whole = build_model(config, torch.float32, "cpu")
    whole.init_dummy(seed=3)
    halves = [build_model(config, torch.float32, "cpu", ThreadGroup(2).rank(r)) for r in range(2)]
    for half in halves:
        half.init_dummy(seed=3)
    rows = [model.layers[0].mlp.gate_up_proj.weight.tensor for model in (whole, *halves)]  # type: ignore[attr-defined]
    gates = torch.cat([half[:16] for half in rows[1:]])
    assert torch.equal(rows[0][:32], gates)
    assert rows[0].std() > 0.01
    other = build_model(config, torch.float32, "cpu")
    other.init_dummy(seed=4)
    assert not torch.equal(other.embed_tokens.weight, whole.embed_tokens.weight)


def test_sizes_that_work() -> None:
    assert supported_tensor_parallel_sizes(make_config()) == [1, 2, 4, 8]
    nine = make_config(num_heads=9, num_kv_heads=3, intermediate_size=36)
    assert supported_tensor_parallel_sizes(nine) == [1, 3, 9]
    moe = make_config(architecture="MixtralForCausalLM", moe=MoEConfig(4, 2, 6, True))
    assert supported_tensor_parallel_sizes(moe) == [1, 2]
    with pytest.raises(
        ValueError, match=r"size 2 does not fit .*9 heads.* sizes that work: 1, 3, 9"
    ):
        check_tensor_parallel(nine, 2)


def test_building_checks_the_size() -> None:
    with pytest.raises(ValueError, match="sizes that work: 1, 2, 4, 8"):
        build_model(make_config(), torch.float32, "cpu", ThreadGroup(3).rank(0))
