"""What else is in the batch, how a prompt is chunked and which blocks hold it change nothing."""

import random

import pytest
import torch

from pagelet.engine.models.registry import build_model
from support.models import CONFIGS, randomize
from support.paged import PagedHarness, logits_of_all


def compute(name: str, dtype: torch.dtype, seed: int, block_size: int) -> list[torch.Tensor]:
    """Logits of the same four sequences, in steps and blocks that depend on the seed."""
    config = CONFIGS[name]
    model = build_model(config, dtype, "cpu")
    randomize(model)
    harness = PagedHarness(config, dtype, random.Random(seed), block_size)
    tokens = random.Random(0)
    for length in (40, 1, 17, 23):
        harness.add([tokens.randrange(config.vocab_size) for _ in range(length)])
    return logits_of_all(model, harness, random.Random(seed))


@pytest.mark.parametrize("name", CONFIGS)
def test_any_schedule_gives_the_same_logits(name: str) -> None:
    first = compute(name, torch.float64, 1, block_size=4)
    for seed, block_size in ((2, 4), (3, 1), (4, 16)):
        for a, b in zip(first, compute(name, torch.float64, seed, block_size), strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_is_near_float64(name: str) -> None:
    exact = torch.cat(compute(name, torch.float64, 1, block_size=4))
    narrow = torch.cat(compute(name, torch.bfloat16, 1, block_size=4))
    assert narrow.dtype == torch.float32
    assert torch.corrcoef(torch.stack((exact.flatten(), narrow.double().flatten())))[0, 1] > 0.99
