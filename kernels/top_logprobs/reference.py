"""Logprobs in torch's operations."""

import torch


def top_logprobs(
    logits: torch.Tensor, chosen: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each row the chosen token, then the `num_top` most likely ones, the likeliest first.

    logits: [num_rows, vocab_size] float32 or float64; chosen: [num_rows] int64. Returns token ids
    [num_rows, 1 + num_top] int64, their logprobs, of the logits' type, and the chosen tokens'
    ranks [num_rows] int64: 1 for a token that no other has a larger logit than. The order of
    equally likely tokens is free, and so is all of a row that has a NaN or an infinite maximum,
    except that its ids are in the vocabulary.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    of_chosen = logits.gather(1, chosen[:, None])
    ranks = (logits > of_chosen).sum(dim=-1) + 1
    largest = logits.topk(num_top, dim=-1).indices
    ids = torch.cat([chosen[:, None], largest], dim=-1)
    return ids, logprobs.gather(1, ids), ranks
