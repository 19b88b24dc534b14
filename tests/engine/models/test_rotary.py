"""Rotary frequencies equal those of transformers at long contexts."""

from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagelet.engine.layers.placement import Placement
from pagelet.engine.layers.rotary import RotaryEmbedding
from pagelet.engine.model_config import RopeConfig

HEAD_DIM, MAX_POSITION = 64, 4096
PLACEMENT = Placement(torch.float32, torch.device("cpu"))
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 8.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-given-attention-factor": {
        "rope_type": "yarn",
        "factor": 40.0,
        "attention_factor": 1.5,
        "beta_fast": 20,
        "beta_slow": 2,
        "truncate": False,
        "original_max_position_embeddings": 1024,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_equals_transformers_token_by_token(name: str) -> None:
    config = transformers.LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITION,
        rope_parameters=SCALINGS[name] | {"rope_theta": 10000.0},
    )
    oracle = LlamaRotaryEmbedding(config)
    scaling = None if name == "default" else SCALINGS[name]
    rotary = RotaryEmbedding(HEAD_DIM, RopeConfig(10000.0, scaling), MAX_POSITION, PLACEMENT)
    positions = torch.tensor([0, 1, 77, 1023, 4095, 4096, 5000, 9999])
    ours = rotary(positions)
    for i, position in enumerate(positions):
        cos, sin = oracle(torch.zeros(1), position.view(1, 1))
        # Half an ulp of a frequency is turned through thousands of radians.
        torch.testing.assert_close(ours.cos[i], cos[0, 0, : HEAD_DIM // 2], atol=2e-3, rtol=0)
        torch.testing.assert_close(ours.sin[i], sin[0, 0, : HEAD_DIM // 2], atol=2e-3, rtol=0)


def test_dynamic_rotation_depends_on_the_position_alone() -> None:
    scaling = {"rope_type": "dynamic", "factor": 3.0}
    rotary = RotaryEmbedding(HEAD_DIM, RopeConfig(1e4, scaling), 8, PLACEMENT)
    together = rotary(torch.arange(20))
    for position in (3, 7, 8, 15):
        alone = rotary(torch.tensor([position]))
        assert torch.equal(alone.cos[0], together.cos[position])
    plain = RotaryEmbedding(HEAD_DIM, RopeConfig(1e4), 8, PLACEMENT)(torch.arange(20))
    assert torch.equal(plain.cos[:8], together.cos[:8])
    assert not torch.allclose(plain.cos[9:], together.cos[9:], atol=1e-3)
