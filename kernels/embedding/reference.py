"""Embedding lookup, a shard of the vocabulary at a time."""

import torch


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first_id: int = 0) -> torch.Tensor:
    """Rows of the table; zeros for ids that this shard of the vocabulary does not hold.

    token_ids: [num_tokens]; weight: [rows, hidden_size], row i for id first_id + i.
    Returns [num_tokens, hidden_size].
    """
    row = token_ids - first_id
    held = (row >= 0) & (row < weight.shape[0])
    out = torch.nn.functional.embedding(row.where(held, 0), weight)
    return out.masked_fill_(~held.unsqueeze(-1), 0)
