"""Layers with adapters of different ranks, at random."""

import torch
from hypothesis import strategies as st

from pagelet.kernels.lora import LowRank


@st.composite
def layers(draw: st.DrawFn) -> tuple[int, list[int], int, list[list[int | None]], list[int]]:
    """Inputs, outputs of each part, rows, each adapter's ranks by part, each row's adapter."""
    parts = draw(st.lists(st.integers(1, 600), min_size=1, max_size=3))
    ranks = st.lists(st.none() | st.integers(1, 40), min_size=len(parts), max_size=len(parts))
    adapters = draw(st.lists(ranks, max_size=4))
    rows = draw(st.integers(1, 70))
    of_rows = draw(st.lists(st.integers(-1, len(adapters) - 1), min_size=rows, max_size=rows))
    return draw(st.integers(1, 300)), parts, rows, adapters, of_rows


def make_adapters(
    in_size: int, parts: list[int], adapters: list[list[int | None]], of_rows: list[int], seed: int
) -> tuple[torch.Generator, list[tuple[torch.Tensor, list[LowRank | None]]]]:
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for index, ranks in enumerate(adapters):
        pairs = [
            None
            if rank is None
            else LowRank(
                torch.randn(rank, in_size, generator=generator),
                torch.randn(size, rank, generator=generator),
            )
            for rank, size in zip(ranks, parts, strict=True)
        ]
        rows = [row for row, of_row in enumerate(of_rows) if of_row == index]
        groups.append((torch.tensor(rows, dtype=torch.int64), pairs))
    return generator, groups
