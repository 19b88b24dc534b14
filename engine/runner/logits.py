"""What requests ask to be done to their logits before a token is drawn.

All functions change `logits` [num_rows, vocab_size] in place; `row_index` and `positions`
[num_rows] say which state row each belongs to, and the index in its sequence of the token to be
drawn, which is also the number of tokens known.
"""

import math

import numpy as np
import numpy.typing as npt
import torch

from pagelet.engine.runner.device import to_device
from pagelet.engine.runner.state import IntArray, RequestRows
from pagelet.kernels.token_mask import mask_tokens

_PENALTY_CHUNK_ELEMENTS = 1 << 24
"""Bounds the memory of the penalties' token and count matrices (128 MiB of int64)."""


def adjust_logits(
    logits: torch.Tensor, rows: RequestRows, row_index: IntArray, positions: IntArray
) -> None:
    """allowed_token_ids, bad_words, min_tokens, logit_bias and penalties, in vLLM's order; rows
    that ask for none stay as they are."""
    if rows.allowed_tokens:
        _keep_allowed(logits, rows, row_index)
    if rows.bad_words:
        _mask_bad_words(logits, rows, row_index, positions)
    if rows.end_token_ids:
        _mask_end_tokens(logits, rows, row_index, positions)
    if rows.logit_bias:
        _add_bias(logits, rows, row_index)
    if not rows.penalized:
        return
    params = rows.params[row_index]
    penalized = (
        (params["repetition_penalty"] != 1.0)
        | (params["frequency_penalty"] != 0.0)
        | (params["presence_penalty"] != 0.0)
    )
    if penalized.any():
        _penalize(logits, rows, row_index, positions, np.flatnonzero(penalized))


def _keep_allowed(logits: torch.Tensor, rows: RequestRows, row_index: IntArray) -> None:
    for index, row in enumerate(row_index.tolist()):
        words = rows.allowed_tokens.get(row)
        if words is not None:
            mask_tokens(logits, torch.tensor([index]), torch.from_numpy(words[None]))


def _mask_bad_words(
    logits: torch.Tensor, rows: RequestRows, row_index: IntArray, positions: IntArray
) -> None:
    """A word counts only if all of it is generated. Where the rows' last tokens are is known here,
    what they are only on the device, so that they are compared there."""
    generated = positions - rows.num_prompt_tokens[row_index]
    words = [
        (index, word)
        for index, row in enumerate(row_index.tolist())
        for word in rows.bad_words.get(row, ())
        if len(word) - 1 <= generated[index]
    ]
    if not words:
        return
    longest = max(len(word) for _, word in words) - 1
    before = np.full((len(words), longest), -1, np.int32)  # -1 stands for any token
    for number, (_, word) in enumerate(words):
        before[number, longest - len(word) + 1 :] = word[:-1]
    index = np.array([index for index, _ in words])
    # Columns before the sequence's first token stand for any, so it does not matter which is read.
    columns = np.maximum(positions[index, None] - longest + np.arange(longest), 0)
    device = logits.device
    known = rows.token_ids[
        to_device(row_index[index, None], device), to_device(columns, device)
    ]  # [num_words, longest]
    wanted = to_device(before, device)
    completed = ((known == wanted) | (wanted == -1)).all(dim=1)
    last = to_device(np.array([word[-1] for _, word in words]), device)
    forbidden = torch.zeros(len(words), dtype=logits.dtype, device=device)
    forbidden.masked_fill_(completed, -math.inf)
    # Added, since two words of a row may have the same last token.
    logits.index_put_((to_device(index, device), last), forbidden, accumulate=True)


def _mask_end_tokens(
    logits: torch.Tensor, rows: RequestRows, row_index: IntArray, positions: IntArray
) -> None:
    generated = positions - rows.num_prompt_tokens[row_index]
    waiting = np.flatnonzero(generated < rows.params["min_tokens"][row_index])
    masked = [(index, rows.end_token_ids[row_index[index]]) for index in waiting.tolist()]
    if masked:
        where = _flatten(masked, logits)
        logits[where] = -math.inf


def _add_bias(logits: torch.Tensor, rows: RequestRows, row_index: IntArray) -> None:
    biased = [
        (index, rows.logit_bias[row])
        for index, row in enumerate(row_index.tolist())
        if row in rows.logit_bias
    ]
    if biased:
        where = _flatten([(index, ids) for index, (ids, _) in biased], logits)
        biases = to_device(np.concatenate([bias for _, (_, bias) in biased]), logits.device)
        logits[where] += biases.to(logits.dtype)  # a row has a token id once at most


def _flatten(
    pairs: list[tuple[int, IntArray]], logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Index tensors (row of `logits`, token id) of (row, token ids) pairs."""
    index = np.repeat([index for index, _ in pairs], [len(ids) for _, ids in pairs])
    token_ids = np.concatenate([ids for _, ids in pairs])
    return to_device(index, logits.device), to_device(token_ids, logits.device)


def _penalize(
    logits: torch.Tensor,
    rows: RequestRows,
    row_index: IntArray,
    positions: IntArray,
    which: npt.NDArray[np.intp],
) -> None:
    """Penalties of the rows `which`, from their tokens as they are: no counts to be kept, none to
    be rebuilt after a preemption. Only logits of tokens that occurred are touched."""
    longest = int(positions[which].max())
    chunk = max(1, _PENALTY_CHUNK_ELEMENTS // (longest + logits.shape[-1]))
    for start in range(0, len(which), chunk):
        part = which[start : start + chunk]
        state_rows = row_index[part]
        longest = int(positions[part].max())
        device, dtype = logits.device, logits.dtype
        tokens = rows.token_ids[to_device(state_rows, device), :longest].long()
        at = torch.arange(longest, device=device)
        known = at < to_device(positions[part], device)[:, None]
        # What lies beyond a row's tokens is made to look like its first token again.
        tokens = torch.where(known, tokens, tokens[:, :1])
        is_output = known & (at >= to_device(rows.num_prompt_tokens[state_rows], device)[:, None])
        counts = torch.zeros(len(part), logits.shape[-1], dtype=torch.int32, device=device)
        counts.scatter_add_(1, tokens, is_output.to(torch.int32))
        times = counts.gather(1, tokens)

        params = rows.params[state_rows]
        repetition, frequency, presence = (
            to_device(params[f"{name}_penalty"].copy(), device).to(dtype)[:, None]
            for name in ("repetition", "frequency", "presence")
        )
        selected = logits[to_device(part, device)]
        values = selected.gather(1, tokens)
        values = torch.where(values > 0, values / repetition, values * repetition)
        values = values - frequency * times - presence * (times > 0)
        # A token that occurs several times is written several times, each time the same.
        logits[to_device(part, device)] = selected.scatter_(1, tokens, values)
