"""The products of adapters, one after another."""

from collections.abc import Sequence

import torch

from pagelet.kernels.lora.adapters import AdapterRows, AdapterTable
from pagelet.kernels.lora.low_rank import LowRank


def add_low_rank(
    out: torch.Tensor,
    x: torch.Tensor,
    part_sizes: Sequence[int],
    groups: Sequence[tuple[torch.Tensor, Sequence[LowRank | None]]],
) -> None:
    """Adds x a^T b^T to rows of `out`, in place.

    out: [num_tokens, sum(part_sizes)], the outputs of projections side by side; x: [num_tokens,
    in_size]. A group is some rows [num_rows] int64, none of them in another group, and what is
    added to each projection there; None: nothing.
    """
    of_parts = torch.split(out, list(part_sizes), dim=1)
    for rows, parts in groups:
        own = x[rows]
        for columns, part in zip(of_parts, parts, strict=True):
            if part is not None:
                columns.index_add_(0, rows, (own @ part.a.T) @ part.b.T)


def add_adapters(
    out: torch.Tensor, x: torch.Tensor, table: AdapterTable, rows: AdapterRows
) -> None:
    """As `add_low_rank`, with the adapters of a table, which holds `LowRank`s."""
    groups = [
        (index.to(x.device), [part if isinstance(part, LowRank) else None for part in held])
        for slot, index in rows.groups
        if any(held := table.held(slot))
    ]
    add_low_rank(out, x, table.sizes, groups)
