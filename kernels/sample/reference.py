"""Sampling, a row at a time, in Python's exact integers."""

import itertools
import math

import torch

from pagelet.kernels.sample.weights import UNIT, integer_weights


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor | None,
    uniforms: torch.Tensor | None,
    *,
    min_p: torch.Tensor | None = None,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    max_top_k: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws one token id for each row (see `pagelet.kernels.sample` for the definition).

    logits: [num_rows, vocab_size] float32 or float64; temperature: [num_rows] float64, each 0 or
    at least 1e-30, or None if all are 0, and then uniforms may be None, too: [num_rows] float64 in
    [0, 1); min_p, top_p: [num_rows] float64, where 0 and 1 keep all; top_k: [num_rows] int64, where
    0 keeps all. A filter that is None is not applied; `max_top_k` is the largest of `top_k`, on the
    host.

    Returns token ids [num_rows] int64, and which rows are broken [num_rows] bool: those with a
    NaN, a +inf or no finite logit at all. Such a row gets some id of the vocabulary and does not
    touch other rows.
    """
    chosen, broken = [], []
    for row in range(logits.shape[0]):
        maximum = logits[row].max()
        broken.append(not maximum.isfinite())
        if broken[row]:
            chosen.append(0)
            continue
        if temperature is None or float(temperature[row]) == 0.0:
            chosen.append(logits[row].tolist().index(float(maximum)))
            continue
        assert uniforms is not None
        at = slice(row, row + 1)
        weights = integer_weights(logits[at], maximum[None], temperature[at])[0].tolist()
        if min_p is not None:
            weights = _keep(weights, math.ceil(float(min_p[row]) * UNIT))
        if top_k is not None and 0 < int(top_k[row]) < len(weights):
            weights = _keep(weights, sorted(weights, reverse=True)[int(top_k[row]) - 1])
        if top_p is not None and float(top_p[row]) < 1.0:
            needed = math.ceil(float(top_p[row]) * float(sum(weights)))
            mass = 0
            for weight in sorted(weights, reverse=True):
                mass += weight
                if mass >= needed:
                    break
            weights = _keep(weights, weight)
        total = sum(weights)
        target = min(math.floor(float(uniforms[row]) * float(total)), total - 1)
        prefix_sums = enumerate(itertools.accumulate(weights))
        chosen.append(next(token for token, mass in prefix_sums if mass > target))
    device = logits.device
    return (
        torch.tensor(chosen, dtype=torch.int64, device=device),
        torch.tensor(broken, dtype=torch.bool, device=device),
    )


def _keep(weights: list[int], threshold: int) -> list[int]:
    return [weight if weight >= threshold else 0 for weight in weights]
