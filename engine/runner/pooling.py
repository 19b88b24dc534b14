"""One vector of a prompt's hidden states, for the requests that ask for it and for no token."""

from collections.abc import Callable

import torch

from pagelet.engine.runner.inputs import StepInputs
from pagelet.engine.runner.state import RequestRows


def pool_states(
    hidden: torch.Tensor,
    inputs: StepInputs,
    rows: RequestRows,
    finish: Callable[[torch.Tensor, list[int]], torch.Tensor],
) -> dict[int, torch.Tensor]:
    """The vectors, float32, of the prompts that end in this step, by index in the batch. The
    others' shares are kept in their rows.

    hidden: [num_tokens, hidden_size]. `finish(state, token_ids)` makes a vector of a pooled state
    [1, hidden_size]. A mean is summed in float64, so that it does not depend on how the prompt was
    cut into chunks.
    """
    results: dict[int, torch.Tensor] = {}
    for index, row in enumerate(inputs.rows.tolist()):
        params = rows.pooling.get(row)
        if params is None:
            continue
        start, end = inputs.query_start[index : index + 2].tolist()
        if params.pooling == "last":
            state = hidden[end - 1]
        elif params.pooling == "cls":
            # Copied: the states are in a buffer that the next step writes to.
            state = rows.pooled.setdefault(row, hidden[start].clone())
        else:
            total = hidden[start:end].sum(dim=0, dtype=torch.float64)
            state = rows.pooled[row] = rows.pooled.get(row, 0) + total
            state = (state / int(inputs.seq_lens[index])).to(hidden.dtype)
        if inputs.samples[index]:
            vector = finish(state[None], params.token_ids)[0]
            results[index] = vector.to(torch.float32, copy=True)
    return results
