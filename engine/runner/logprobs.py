"""Logprobs of chosen tokens and of the most likely ones, from raw logits."""

from collections.abc import Sequence

import torch

from pagelet.protocol.engine import TokenLogprobs


def token_logprobs(
    logprobs: torch.Tensor, chosen: torch.Tensor, counts: Sequence[int]
) -> list[TokenLogprobs]:
    """For each row the chosen token, then the `counts[row]` most likely ones in order.

    logprobs: [num_rows, vocab_size]; chosen: [num_rows] int64.
    """
    of_chosen = logprobs.gather(1, chosen[:, None])  # [num_rows, 1]
    ranks = (logprobs > of_chosen).sum(dim=-1) + 1
    values, ids = logprobs.topk(min(max(counts), logprobs.shape[-1]), dim=-1)
    ids = torch.cat([chosen[:, None], ids], dim=-1)
    values = torch.cat([of_chosen, values], dim=-1)
    return [
        TokenLogprobs(row_ids[: count + 1], row_values[: count + 1], rank)
        for row_ids, row_values, rank, count in zip(
            ids.tolist(), values.tolist(), ranks.tolist(), counts, strict=True
        )
    ]
