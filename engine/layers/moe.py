"""The sparse mixture of experts."""

import dataclasses

import torch

from pagelet.engine.layers.linear import ReplicatedLinear
from pagelet.engine.layers.placement import Placement, Weight, Weights, load_into
from pagelet.engine.layers.recording import Recorder
from pagelet.engine.model_config import MoEConfig
from pagelet.kernels.moe import moe


@dataclasses.dataclass(frozen=True)
class ExpertNames:
    """What a checkpoint calls the three matrices of an expert."""

    gate: str
    up: str
    down: str


class SparseMoE:
    """Each token goes to its top experts. Every rank holds a part of the intermediate dimension
    of every expert, so that ranks share the work whatever the routing; or, with expert
    parallelism, a part of the experts in full, which are larger matrices (GShard, arXiv
    2006.16668)."""

    def __init__(
        self, hidden_size: int, config: MoEConfig, names: ExpertNames, placement: Placement
    ) -> None:
        self.config = config
        self.names = names
        self.tp = placement.tp
        self.router = ReplicatedLinear(hidden_size, config.num_experts, placement)
        self.by_expert = placement.ranks.expert_parallel
        local, experts = config.intermediate_size, config.num_experts
        if self.by_expert:
            experts = placement.share(experts)
        else:
            local = placement.share(local)
        self.first_expert = self.tp.rank * experts if self.by_expert else 0
        self.gate_up = placement.empty(experts, 2 * local, hidden_size)
        self.down = placement.empty(experts, hidden_size, local)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = moe(
            x,
            self.router(x),
            self.gate_up,
            self.down,
            self.config.num_experts_per_token,
            self.config.norm_topk_prob,
            self.first_expert,
        )
        return self.tp.all_reduce(out)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends the layer on x to `out`, computed by torch."""

        def run(num_tokens: int) -> None:
            out[:num_tokens] = self(x[:num_tokens])

        recorder.call(run)

    def weights(self, prefix: str) -> Weights:
        yield from self.router.weights(f"{prefix}.gate")
        experts, hidden_size, local = self.down.shape
        wide = (self.config.intermediate_size, hidden_size)
        rank = 0 if self.by_expert else self.tp.rank
        for expert in range(experts):
            gate, up = self.gate_up[expert, :local], self.gate_up[expert, local:]
            name = f"{prefix}.experts.{self.first_expert + expert}"
            for matrix, rows in ((self.names.gate, gate), (self.names.up, up)):
                load = load_into(rows, 0, rank)
                yield Weight(f"{name}.{matrix}.weight", wide, load, self.gate_up)
            load = load_into(self.down[expert], 1, rank)
            yield Weight(f"{name}.{self.names.down}.weight", wide[::-1], load, self.down)
