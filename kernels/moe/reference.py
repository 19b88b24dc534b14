"""The mixture of experts, a token and an expert at a time."""

import torch

from pagelet.kernels.moe.experts import Experts, matrix_of
from pagelet.kernels.precision import accumulation_dtype


def moe(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    gate_up: Experts,
    down: Experts,
    top_k: int,
    renormalize: bool,
    first_expert: int = 0,
) -> torch.Tensor:
    """Sum over each token's top_k experts of probability * down(silu(gate(x)) * up(x)).

    x: [num_tokens, hidden_size]; router_logits: [num_tokens, num_experts];
    gate_up: [num_local, 2 * intermediate_size, hidden_size], gate rows before up rows;
    down: [num_local, hidden_size, intermediate_size]; each floats or quantised. `renormalize`
    rescales the chosen probabilities of the softmax over all experts to sum to 1. The weights are
    those of experts [first_expert, first_expert + num_local), perhaps not all (expert parallel):
    what the router gives to others adds nothing here. Returns [num_tokens, hidden_size].
    """
    wide = accumulation_dtype(x.dtype)
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        probabilities = torch.softmax(router_logits[token].to(wide), dim=-1)
        chosen, experts = torch.topk(probabilities, top_k)
        if renormalize:
            chosen = chosen / chosen.sum()
        total = torch.zeros(x.shape[1], dtype=wide, device=x.device)
        for probability, expert in zip(chosen, (experts - first_expert).tolist(), strict=True):
            if not 0 <= expert < gate_up.shape[0]:
                continue
            gate, up = (matrix_of(gate_up, expert, wide) @ x[token].to(wide)).chunk(2)
            gated = gate * torch.sigmoid(gate) * up
            total += probability * (matrix_of(down, expert, wide) @ gated)
        out[token] = total
    return out
