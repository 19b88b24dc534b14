"""Logprobs of prompt tokens, for the requests that ask, in bounded memory."""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch

from pagelet.engine.runner.device import to_device
from pagelet.engine.runner.inputs import StepInputs
from pagelet.engine.runner.logprobs import LogprobRows, token_logprobs
from pagelet.engine.runner.state import RequestRows

_CHUNK_ROWS = 64
"""Positions whose logits are in memory at once; a long prompt's logits would fill any machine
(vllm-project/vllm#5907)."""


@dataclasses.dataclass(frozen=True)
class PromptChunk:
    """Some positions' logprobs."""

    requests: list[int]
    """The request of each, by its index in the batch."""
    rows: LogprobRows
    broken: torch.Tensor  # [num_rows] bool, whether a position's logits were not numbers


@dataclasses.dataclass(frozen=True)
class PromptLogprobs:
    """What a step brought."""

    requests: list[int]
    """Those that ask for prompt logprobs, by index in the batch, also where there are none yet."""
    chunks: list[PromptChunk]


def prompt_logprobs(
    hidden: torch.Tensor,
    inputs: StepInputs,
    rows: RequestRows,
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
) -> PromptLogprobs:
    """Logprobs of the prompt tokens that follow this step's tokens.

    Position p's logits are those of token p + 1; the prompt's last position is not here, as its
    logits are for sampling. hidden: [num_tokens, hidden_size]; `compute_logits` gives raw logits
    of some of its rows.
    """
    if not rows.with_prompt_logprobs:
        return PromptLogprobs([], [])
    counts = rows.params["prompt_logprobs"][inputs.rows]  # [num_reqs]
    num_prompt = rows.num_prompt_tokens[inputs.rows]
    last = np.minimum(inputs.seq_lens, num_prompt - 1)
    lengths = np.where(counts >= 0, np.maximum(last - inputs.num_computed, 0), 0)
    results = PromptLogprobs(np.flatnonzero(counts >= 0).tolist(), [])
    request = np.repeat(np.arange(len(lengths)), lengths)  # of each position asked for
    if len(request) == 0:
        return results
    within = np.arange(len(request)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    flat = inputs.query_start[request] + within
    device = hidden.device
    targets = rows.tokens_at(inputs.rows[request], inputs.num_computed[request] + within + 1)
    for start in range(0, len(request), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        logits = compute_logits(hidden[to_device(flat[chunk], device)])
        broken = ~logits.amax(dim=-1).isfinite()
        requests = request[chunk]
        found = token_logprobs(logits, targets[chunk], counts[requests].tolist())
        results.chunks.append(PromptChunk(requests.tolist(), found, broken))
    return results
