"""From logits to tokens, all rows of a step at once.

The order is vLLM's: raw logprobs, min_tokens, logit_bias, penalties, grammars, then greedy or
temperature, min_p, top_k, top_p and the draw (see `pagelet.kernels.sample`). A row's token depends
on its own logits, parameters and tokens alone, never on what else is in the batch.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch

from pagelet.engine.runner.device import to_device
from pagelet.engine.runner.logits import adjust_logits
from pagelet.engine.runner.logprobs import LogprobRows, token_logprobs
from pagelet.engine.runner.masks import MaskedRows
from pagelet.engine.runner.state import IntArray, RequestRows
from pagelet.kernels.precision import accumulation_dtype
from pagelet.kernels.sample import sample
from pagelet.kernels.sample.random import uniforms
from pagelet.kernels.token_mask import mask_tokens


@dataclasses.dataclass
class Sampled:
    """One token a row. A `broken` row's logits were not finite numbers, or none was allowed: its
    token is some id that means nothing."""

    token_ids: torch.Tensor  # [num_rows] int64
    broken: torch.Tensor  # [num_rows] bool
    with_logprobs: list[int]
    """The rows that asked for logprobs."""
    logprobs: LogprobRows | None
    """Theirs, if there are any."""


def raw_logits(logits: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The model's logits [num_rows, vocab_size] in the precision that reductions run in, perhaps
    in place. Ids from `num_tokens` on only pad the vocabulary: at -inf no one can draw them
    (vllm-project/vllm#13175)."""
    logits = logits.to(accumulation_dtype(logits.dtype))
    if num_tokens < logits.shape[1]:
        logits[:, num_tokens:] = -math.inf
    return logits


def sample_tokens(
    logits: torch.Tensor,
    rows: RequestRows,
    row_index: IntArray,
    positions: IntArray,
    masked: Callable[[], MaskedRows] | None = None,
) -> Sampled:
    """Draws the next token of each row.

    logits: [num_rows, vocab_size] float32 or float64, as `raw_logits` gives them; it is changed.
    row_index: [num_rows] state rows; positions: [num_rows], the index in its sequence of
    the token to be drawn; masked: waits for the masks of rows that a grammar constrains.
    """
    wanted = np.empty(0, np.int64)
    if rows.with_logprobs:
        counts = rows.params["logprobs"][row_index]
        wanted = np.flatnonzero(counts >= 0)
    if len(wanted):
        wanted_device = to_device(wanted, logits.device)
        raw = logits[wanted_device]
    adjust_logits(logits, rows, row_index, positions)
    if masked is not None:
        mask_tokens(logits, *masked())
    token_ids, broken = _draw(logits, rows, row_index, positions)
    logprobs = None
    if len(wanted):
        logprobs = token_logprobs(raw, token_ids[wanted_device], counts[wanted].tolist())
    return Sampled(token_ids, broken, wanted.tolist(), logprobs)


def guess_tokens(
    logits: torch.Tensor, rows: RequestRows, row_index: IntArray, positions: IntArray
) -> torch.Tensor:
    """What each row would draw [num_rows] if these logits were the model's; grammars aside."""
    adjust_logits(logits, rows, row_index, positions)
    return _draw(logits, rows, row_index, positions)[0]


def _draw(
    logits: torch.Tensor, rows: RequestRows, row_index: IntArray, positions: IntArray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, and which rows are broken."""
    columns = draw_columns(rows, row_index, positions)
    return sample(
        logits,
        columns.temperature,
        columns.uniforms,
        min_p=columns.min_p,
        top_k=columns.top_k,
        top_p=columns.top_p,
        max_top_k=columns.max_top_k,
    )


@dataclasses.dataclass(frozen=True)
class DrawColumns:
    """How each row's token is drawn, as `pagelet.kernels.sample` takes it: [num_rows] each."""

    temperature: torch.Tensor | None = None
    uniforms: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    max_top_k: int = 0


def draw_columns(rows: RequestRows, row_index: IntArray, positions: IntArray) -> DrawColumns:
    """The columns of these rows. Those that no row asked for are left out, and with them the work,
    which changes no row's token."""
    if not rows.drawn:
        return DrawColumns()
    params, device = rows.params[row_index], rows.token_ids.device
    temperature = np.where(params["greedy"], 0.0, params["temperature"])
    max_top_k = int(params["top_k"].max())

    def column(name: str) -> torch.Tensor:
        return to_device(params[name].copy(), device)

    return DrawColumns(
        to_device(temperature, device) if temperature.any() else None,
        to_device(uniforms(params["seed"], positions), device),
        min_p=column("min_p") if params["min_p"].any() else None,
        top_k=column("top_k") if max_top_k > 0 else None,
        top_p=column("top_p") if (params["top_p"] < 1.0).any() else None,
        max_top_k=max_top_k,
    )
