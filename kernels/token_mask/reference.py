"""One token after another."""

import math

import torch


def mask_tokens(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """Sets the logits of forbidden tokens to minus infinity, in place.

    logits: [num_rows, vocab_size]; rows: [num_masked] int64, those that have a mask, each once;
    words: [num_masked, at most ceil(vocab_size / 32)] int32 on the CPU, where bit `i % 32` of word
    `i // 32` is set if token i is allowed. Tokens beyond the words are forbidden.
    """
    for row, mask in zip(rows.tolist(), words.tolist(), strict=True):
        for token in range(logits.shape[-1]):
            word = mask[token // 32] if token // 32 < len(mask) else 0
            if not word >> token % 32 & 1:
                logits[row, token] = -math.inf
