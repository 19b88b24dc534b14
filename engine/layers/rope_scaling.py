"""Frequencies of rotary embeddings, and the ways of stretching them over longer contexts.

A scaling is the checkpoint's dict, in Hugging Face's spelling; its `rope_type` picks the class.
All are computed in float32, as in transformers, whose trained models expect the same rounding.
"""

import math
from typing import Any

import torch

from pagelet.engine.model_config import RopeConfig


class DefaultRope:
    """theta ** (-2 i / head_dim) for pair i (RoFormer, arXiv 2104.09864)."""

    factor = 1.0
    """Multiplies the cosines and sines."""

    def __init__(
        self, head_dim: int, theta: float, scaling: dict[str, Any], max_position: int
    ) -> None:
        self.head_dim = head_dim
        self.theta = theta
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self.inverse = self.scale(1.0 / theta**exponents, scaling, max_position)

    def scale(
        self, inverse: torch.Tensor, scaling: dict[str, Any], max_position: int
    ) -> torch.Tensor:
        """The stretched frequencies [head_dim / 2]."""
        return inverse

    def frequencies(self, positions: torch.Tensor) -> torch.Tensor:
        """Radians a position, for each position: broadcastable to [num_tokens, head_dim / 2]."""
        return self.inverse


class LinearRope(DefaultRope):
    """Position interpolation (arXiv 2306.15595)."""

    def scale(
        self, inverse: torch.Tensor, scaling: dict[str, Any], max_position: int
    ) -> torch.Tensor:
        return inverse / float(scaling["factor"])


class Llama3Rope(DefaultRope):
    """Llama 3.1: long wavelengths are stretched, short ones kept, with a ramp between."""

    def scale(
        self, inverse: torch.Tensor, scaling: dict[str, Any], max_position: int
    ) -> torch.Tensor:
        factor = float(scaling["factor"])
        low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
        original = int(scaling.get("original_max_position_embeddings", max_position))
        turns = original * inverse / (2 * math.pi)  # full rotations over the original context
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - kept) * inverse / factor + kept * inverse


class YarnRope(DefaultRope):
    """YaRN (arXiv 2309.00071): a ramp over the pairs, and a temperature as `factor`."""

    def scale(
        self, inverse: torch.Tensor, scaling: dict[str, Any], max_position: int
    ) -> torch.Tensor:
        stretch = float(scaling["factor"])
        original = int(scaling.get("original_max_position_embeddings", max_position))
        self.factor = _yarn_attention_factor(scaling)

        def pair(turns: float) -> float:
            """The (fractional) pair that makes this many rotations over the original context."""
            span = math.log(original / (turns * 2 * math.pi))
            return self.head_dim * span / (2 * math.log(self.theta))

        low = pair(scaling.get("beta_fast") or 32)
        high = pair(scaling.get("beta_slow") or 1)
        if scaling.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.head_dim - 1)
        pairs = torch.arange(self.head_dim // 2, dtype=torch.float32)
        stretched = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
        return inverse / stretch * stretched + inverse * (1 - stretched)


def _yarn_attention_factor(scaling: dict[str, Any]) -> float:
    def temperature(scale: float) -> float:
        return 0.1 * scale * math.log(scaling["factor"]) + 1 if scaling["factor"] > 1 else 1.0

    if (given := scaling.get("attention_factor")) is not None:
        return float(given)
    numerator, denominator = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if numerator and denominator:
        return temperature(numerator) / temperature(denominator)
    return temperature(1)


class DynamicRope(DefaultRope):
    """Dynamic NTK: beyond the trained length theta grows with the length.

    Each token is rotated by the frequencies of the length that ends with it. These are what
    transformers uses as it decodes token by token; they depend on nothing but the position, so
    cached keys, chunks of a prompt and the rest of the batch cannot change an answer.
    """

    def scale(
        self, inverse: torch.Tensor, scaling: dict[str, Any], max_position: int
    ) -> torch.Tensor:
        self.stretch = float(scaling["factor"])
        self.max_position = max_position
        return inverse

    def frequencies(self, positions: torch.Tensor) -> torch.Tensor:
        length = (positions + 1).clamp(min=self.max_position).to(torch.float32)
        growth = self.stretch * length / self.max_position - (self.stretch - 1)
        theta = self.theta * growth ** (self.head_dim / (self.head_dim - 2))
        exponents = torch.arange(0, self.head_dim, 2, device=positions.device) / self.head_dim
        powers: torch.Tensor = theta.unsqueeze(1) ** exponents
        return 1.0 / powers


_ROPES: dict[str, type[DefaultRope]] = {
    "default": DefaultRope,
    "linear": LinearRope,
    "dynamic": DynamicRope,
    "llama3": Llama3Rope,
    "yarn": YarnRope,
}


def make_rope(head_dim: int, rope: RopeConfig, max_position: int) -> DefaultRope:
    """`max_position` is the model's trained length, where the scaling does not say its own.

    Raises ValueError for a scaling that is not here, and for one that lacks a field."""
    scaling = rope.scaling or {}
    kind = scaling.get("rope_type", "default")
    if kind not in _ROPES:
        raise ValueError(
            f"rotary scaling {kind!r} is not supported; supported: {', '.join(_ROPES)}"
        )
    try:
        return _ROPES[kind](head_dim, rope.theta, scaling, max_position)
    except KeyError as error:
        raise ValueError(f"rotary scaling {kind!r} lacks its field {error}") from error
