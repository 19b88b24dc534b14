"""The gated feed-forward layer."""

from typing import Literal

import torch

from pagelet.engine.layers.linear import ColumnParallelLinear, Projection, RowParallelLinear
from pagelet.engine.layers.placement import Placement, Weights
from pagelet.kernels.gated_activation import gelu_and_mul, silu_and_mul


class GatedMLP:
    """down(act(gate(x)) * up(x))."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: Literal["silu", "gelu_tanh"],
        placement: Placement,
    ) -> None:
        local, rank = placement.share(intermediate_size), placement.tp.rank
        self.gate_up_proj = ColumnParallelLinear(
            hidden_size,
            [
                Projection("gate_proj", intermediate_size, local, rank),
                Projection("up_proj", intermediate_size, local, rank),
            ],
            False,
            placement,
        )
        self.activation = {"silu": silu_and_mul, "gelu_tanh": gelu_and_mul}[hidden_act]
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, False, placement)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.activation(self.gate_up_proj(x)))

    def weights(self, prefix: str) -> Weights:
        yield from self.gate_up_proj.weights(prefix)
        yield from self.down_proj.weights(f"{prefix}.down_proj")
