"""The mixture of experts, an expert at a time over all of its tokens."""

import torch
from torch.nn import functional

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
    """As `reference.moe`; reads the weights of the chosen experts only."""
    wide = accumulation_dtype(x.dtype)
    probabilities = torch.softmax(router_logits, dim=-1, dtype=wide)
    chosen, experts = torch.topk(probabilities, top_k, dim=-1)  # [num_tokens, top_k]
    if renormalize:
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)

    # Sorting the (token, choice) pairs by expert makes each expert's tokens one slice.
    flat = experts.flatten()
    order = torch.argsort(flat, stable=True)
    tokens = order // top_k
    weights = chosen.flatten()[order].unsqueeze(-1)
    counts = torch.bincount(flat, minlength=router_logits.shape[1]).tolist()

    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    start = sum(counts[:first_expert])
    for expert, count in enumerate(counts[first_expert : first_expert + gate_up.shape[0]]):
        if count == 0:
            continue
        rows = slice(start, start + count)
        first, last = (matrix_of(weight, expert, x.dtype) for weight in (gate_up, down))
        gate, up = functional.linear(x[tokens[rows]], first).chunk(2, dim=-1)
        result = functional.linear(functional.silu(gate).mul_(up), last)
        out.index_add_(0, tokens[rows], result.to(wide) * weights[rows])
        start += count
    return out.to(x.dtype)
