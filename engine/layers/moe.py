"""The sparse mixture of experts."""

import dataclasses

import torch

from pagelet.engine.layers.expert_weights import ExpertWeights
from pagelet.engine.layers.linear import ReplicatedLinear, all_reduce_rows
from pagelet.engine.layers.placement import Placement, Weight, Weights
from pagelet.engine.layers.recording import Recorder
from pagelet.engine.model_config import MoEConfig
from pagelet.kernels.moe import moe
from pagelet.kernels.moe.cpu import PackedExpert, record_moe


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
        self.hidden_size = hidden_size
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
        self.num_local = experts
        self.gate_up = ExpertWeights(experts, [local, local], hidden_size, placement)
        self.down = ExpertWeights(experts, [hidden_size], local, placement)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = moe(
            x,
            self.router(x),
            self.gate_up.experts,
            self.down.experts,
            self.config.num_experts_per_token,
            self.config.norm_topk_prob,
            self.first_expert,
        )
        return self.tp.all_reduce(out)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends the layer on x to `out`."""
        router_logits = recorder.buffer("router_logits", self.config.num_experts)
        self.router.record(recorder, x, router_logits)
        gate_up, down = self.gate_up.packed, self.down.packed
        experts = [
            PackedExpert(gate_up[expert, 0], gate_up[expert, 1], down[expert, 0])
            for expert in range(self.num_local)
        ]
        record_moe(
            recorder.program,
            x,
            router_logits,
            experts,
            out,
            self.config.num_experts_per_token,
            self.config.norm_topk_prob,
            self.first_expert,
        )
        if self.tp.size > 1:
            recorder.call(lambda num_tokens: all_reduce_rows(self.tp, out, num_tokens))

    def weights(self, prefix: str) -> Weights:
        yield from self.router.weights(f"{prefix}.gate")
        wide = (self.config.intermediate_size, self.hidden_size)
        rank = 0 if self.by_expert else self.tp.rank
        for expert in range(self.num_local):
            name = f"{prefix}.experts.{self.first_expert + expert}"
            for part, matrix in enumerate((self.names.gate, self.names.up)):
                load = self.gate_up.loader(expert, part, 0, rank)
                yield Weight(f"{name}.{matrix}.weight", wide, load, self.gate_up)
            load = self.down.loader(expert, 0, 1, rank)
            yield Weight(f"{name}.{self.names.down}.weight", wide[::-1], load, self.down)
