"""The gated feed-forward layer."""

from typing import Literal

import torch

from pagelet.engine.layers.linear import ColumnParallelLinear, Projection, RowParallelLinear
from pagelet.engine.layers.placement import Placement, Weights
from pagelet.engine.layers.recording import Recorder
from pagelet.kernels.gated_activation import gelu_and_mul, silu_and_mul
from pagelet.kernels.gated_activation.cpu import record_gated_activation


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
        self.hidden_act = hidden_act
        self.activation = {"silu": silu_and_mul, "gelu_tanh": gelu_and_mul}[hidden_act]
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, False, placement)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.activation(self.gate_up_proj(x)))

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends the layer on x to `out`."""
        size = self.gate_up_proj.out_size
        gate_up = recorder.buffer("gate_up", size)
        gated = recorder.buffer("gated", size // 2)
        self.gate_up_proj.record(recorder, x, gate_up)
        record_gated_activation(
            recorder.program, gate_up, gated, gelu_tanh=self.hidden_act == "gelu_tanh"
        )
        self.down_proj.record(recorder, gated, out)

    def weights(self, prefix: str) -> Weights:
        yield from self.gate_up_proj.weights(prefix)
        yield from self.down_proj.weights(f"{prefix}.down_proj")
