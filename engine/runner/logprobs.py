"""Logprobs of chosen tokens and of the most likely ones, from raw logits."""

import dataclasses
from collections.abc import Sequence

import torch

from pagelet.kernels.top_logprobs import top_logprobs
from pagelet.protocol.engine import TokenLogprobs


@dataclasses.dataclass(frozen=True)
class LogprobRows:
    """Of each row the chosen token, then the most likely ones in order; on the device until
    someone asks for the entries."""

    ids: torch.Tensor  # [num_rows, 1 + max(counts)] int64
    values: torch.Tensor  # [num_rows, 1 + max(counts)]
    ranks: torch.Tensor  # [num_rows] int64
    counts: Sequence[int]
    """How many of the most likely tokens each row asked for."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What the host has to wait for."""
        return self.ids, self.values, self.ranks


def token_logprobs(
    logits: torch.Tensor, chosen: torch.Tensor, counts: Sequence[int]
) -> LogprobRows:
    """For each row the chosen token, then the `counts[row]` most likely ones in order.

    logits: [num_rows, vocab_size]; chosen: [num_rows] int64.
    """
    most = min(max(counts), logits.shape[-1])
    return LogprobRows(*top_logprobs(logits, chosen, most), counts)


def entries(
    ids: torch.Tensor, values: torch.Tensor, ranks: torch.Tensor, counts: Sequence[int]
) -> list[TokenLogprobs]:
    """The rows as messages, from the fields of `LogprobRows` on the host."""
    return [
        TokenLogprobs(row_ids[: count + 1], row_values[: count + 1], rank)
        for row_ids, row_values, rank, count in zip(
            ids.tolist(), values.tolist(), ranks.tolist(), counts, strict=True
        )
    ]
