"""All rows at once with torch's own operations."""

import math

import numpy as np
import torch


def mask_tokens(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """See `pagelet.kernels.token_mask.reference.mask_tokens`."""
    vocab_size = logits.shape[-1]
    covered = min(vocab_size, words.shape[-1] * 32)
    if logits.device.type == "cuda":  # pinned, so that the host need not wait for the copies
        rows = rows.pin_memory().to(logits.device, non_blocking=True)
        words = words.pin_memory().to(logits.device, non_blocking=True)
    if covered < vocab_size:
        logits[rows, covered:] = -math.inf
    if logits.device.type == "cpu":
        octets = words.numpy().view(np.uint8)
        bits = np.unpackbits(octets, axis=-1, count=covered, bitorder="little")
        forbidden = torch.from_numpy(bits).logical_not()
        for row, mask in zip(rows.tolist(), forbidden, strict=True):  # in place, without a copy
            logits[row, :covered].masked_fill_(mask, -math.inf)
        return
    bit = torch.arange(32, device=logits.device, dtype=torch.int32)
    allowed = (words[:, :, None] >> bit & 1).bool().flatten(1)[:, :covered]
    logits[rows, :covered] = logits[rows, :covered].masked_fill(~allowed, -math.inf)
