"""Rotary position embedding: from positions to the rotation that a step's layers share."""

import dataclasses

import torch

from pagelet.engine.layers.placement import Placement
from pagelet.engine.layers.rope_scaling import make_rope
from pagelet.engine.model_config import RopeConfig
from pagelet.kernels.precision import accumulation_dtype


@dataclasses.dataclass(frozen=True)
class Rotation:
    """The rotation of each token of a step."""

    cos: torch.Tensor  # [num_tokens, head_dim / 2]
    sin: torch.Tensor


class RotaryEmbedding:
    """Positions [num_tokens] to their `Rotation`.

    Computed for the positions of each step and not tabulated, so that no length is fixed ahead.
    """

    def __init__(
        self, head_dim: int, rope: RopeConfig, max_position: int, placement: Placement
    ) -> None:
        self.rope = make_rope(head_dim, rope, max_position)
        self.rope.inverse = self.rope.inverse.to(placement.device)
        self.dtype = accumulation_dtype(placement.dtype)

    def table(self, max_positions: int) -> torch.Tensor:
        """Cosines and sines of all positions, float32 [max_positions, 2, head_dim / 2]."""
        rotation = self(torch.arange(max_positions))
        return torch.stack((rotation.cos, rotation.sin), dim=1).float().contiguous()

    def __call__(self, positions: torch.Tensor) -> Rotation:
        frequencies = self.rope.frequencies(positions)
        angles = positions.to(torch.float32).unsqueeze(1) * frequencies
        factor = self.rope.factor
        return Rotation(
            (angles.cos() * factor).to(self.dtype), (angles.sin() * factor).to(self.dtype)
        )
