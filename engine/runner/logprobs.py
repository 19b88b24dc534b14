"""Logprobs of chosen tokens and of the most likely ones, from raw logits."""

from collections.abc import Sequence

import torch

from pagelet.kernels.top_logprobs import top_logprobs
from pagelet.protocol.engine import TokenLogprobs


def token_logprobs(
    logits: torch.Tensor, chosen: torch.Tensor, counts: Sequence[int]
) -> list[TokenLogprobs]:
    """For each row the chosen token, then the `counts[row]` most likely ones in order.

    logits: [num_rows, vocab_size]; chosen: [num_rows] int64.
    """
    ids, values, ranks = top_logprobs(logits, chosen, min(max(counts), logits.shape[-1]))
    return [
        TokenLogprobs(row_ids[: count + 1], row_values[: count + 1], rank)
        for row_ids, row_values, rank, count in zip(
            ids.tolist(), values.tolist(), ranks.tolist(), counts, strict=True
        )
    ]
