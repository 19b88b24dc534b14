"""Sampling of all rows at once with torch's own operations."""

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
    """See `pagelet.kernels.sample.reference.sample`."""
    maximum = logits.amax(dim=-1)
    broken = ~maximum.isfinite()
    # Of equal logits argmax may name any.
    first_of_largest = (logits == maximum[:, None]).to(torch.uint8).argmax(dim=-1)
    if temperature is None:
        return first_of_largest, broken
    assert uniforms is not None
    greedy = temperature == 0.0
    weights = integer_weights(logits, maximum, temperature.masked_fill(greedy, 1.0))
    if min_p is not None:
        _keep(weights, torch.ceil(min_p * UNIT).to(torch.int64))
    if top_k is not None:
        _keep(weights, _kth_largest(weights, top_k, max_top_k))
    if top_p is not None:
        _keep(weights, _nucleus_threshold(weights, top_p))
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1]
    target = torch.minimum((uniforms * total).floor().to(torch.int64), total - 1)
    drawn = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1)
    # A row with NaN has no prefix sums to speak of, but its id must not point anywhere else.
    drawn.clamp_(max=logits.shape[-1] - 1)
    return torch.where(greedy, first_of_largest, drawn), broken


def _keep(weights: torch.Tensor, threshold: torch.Tensor) -> None:
    """Zeroes the weights below each row's threshold, in place."""
    weights.masked_fill_(weights < threshold[:, None], 0)


def _kth_largest(weights: torch.Tensor, top_k: torch.Tensor, max_top_k: int) -> torch.Tensor:
    """Each row's k-th largest weight [num_rows]; 0 where k keeps all."""
    vocab_size = weights.shape[-1]
    max_top_k = min(max_top_k, vocab_size)
    largest = weights.topk(max_top_k, dim=-1).values  # [num_rows, max_top_k], descending
    kth = largest.gather(1, (top_k.clamp(1, max_top_k) - 1)[:, None]).squeeze(-1)
    return torch.where((top_k > 0) & (top_k < vocab_size), kth, 0)


def _nucleus_threshold(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Each row's smallest weight inside of its nucleus [num_rows]; 0 where top_p keeps all."""
    total = weights.sum(dim=-1)
    needed = torch.ceil(top_p * total).to(torch.int64)
    if weights.device.type == "cpu":
        candidates = _pack_candidates(weights, torch.where(top_p < 1.0, total - needed, total))
        candidates.numpy().sort(axis=-1)  # vectorised, unlike torch's
        descending = candidates.flip(-1)
    else:  # to sort all is faster than to wait for the number of candidates
        descending = weights.sort(dim=-1, descending=True).values
    last = torch.searchsorted(descending.cumsum(dim=-1), needed[:, None])
    last.clamp_(max=descending.shape[-1] - 1)
    return torch.where(top_p < 1.0, descending.gather(1, last).squeeze(-1), 0)


def _pack_candidates(weights: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """Each row's weights without the smallest, padded with zeros [num_rows, most candidates].

    Dropped are weights of at most spare / vocab_size: even all together they weigh no more than
    `spare` [num_rows], so that what a nucleus can do without is dropped before the sort, which is
    most of a usual vocabulary.
    """
    kept = weights > (spare // weights.shape[-1])[:, None]
    counts = kept.count_nonzero(dim=-1)
    flat = kept.flatten().nonzero().squeeze(-1)
    width = max(1, int(counts.max()))
    # Candidate i is the (i - its row's first)-th of its row.
    shift = torch.arange(len(counts)) * width - (counts.cumsum(dim=0) - counts)
    packed = weights.new_zeros(len(counts), width)
    where = torch.arange(len(flat)) + shift.repeat_interleave(counts)
    packed.view(-1)[where] = weights.flatten()[flat]
    return packed
