"""Where a layer's adapters lie, and which rows of a step have which: what the kernels for adapters
read. Both stay where they are, so that recorded programs and CUDA graphs can hold on to them."""

import itertools
from collections.abc import Sequence
from typing import Final, Protocol

import torch

from pagelet.kernels.gpu import invariance
from pagelet.kernels.lora.low_rank import LowRank

BLOCK_ROWS: Final = 16
"""Rows of a block, so that a prompt of one adapter is work for several threads or programs."""
WIDE_ROWS: Final = 64
"""The same in a step of many rows, on a GPU."""
MANY_ROWS: Final = 512
"""Of a step beyond which blocks are wide."""


class Matrices(Protocol):
    """What an adapter adds to one projection, in memory that stays where it is."""

    @property
    def addresses(self) -> tuple[int, int]:
        """Of both matrices."""
        ...

    @property
    def rank(self) -> int: ...


class AdapterTable:
    """The matrices of adapters on one layer's projections, side by side, by slot."""

    def __init__(
        self, num_slots: int, part_sizes: Sequence[int], max_rank: int, device: torch.device
    ) -> None:
        """`part_sizes` are the outputs of each projection; no adapter has more than `max_rank`."""
        self.sizes = list(part_sizes)
        self.max_rank = max_rank
        self.part_sizes = torch.tensor(part_sizes, dtype=torch.int32, device=device)
        self.matrices = torch.zeros(num_slots, len(part_sizes), 3, dtype=torch.int64, device=device)
        """Addresses of both, and the rank, padded in `LowRank`s; 0 where an adapter has none."""
        self._held: dict[int, Sequence[Matrices | None]] = {}

    def put(self, slot: int, parts: Sequence[Matrices | None]) -> None:
        """Sets a slot's matrices, and keeps them until something else is put there."""
        assert all(part is None or part.rank <= self.max_rank for part in parts), self.max_rank
        held = [part.padded() if isinstance(part, LowRank) else part for part in parts]
        entries = [(0, 0, 0) if part is None else (*part.addresses, part.rank) for part in held]
        self.matrices[slot] = torch.tensor(entries, device=self.matrices.device)
        self._held[slot] = held

    def drop(self, slot: int) -> None:
        """Lets go of a slot's matrices, if it has any."""
        if self._held.pop(slot, None) is not None:
            self.matrices[slot].zero_()

    def held(self, slot: int) -> Sequence[Matrices | None]:
        """By projection."""
        return self._held.get(slot, [None] * len(self.sizes))


class AdapterRows:
    """Which rows of the step at hand have which adapter; shared by all layers of a model."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.groups: list[tuple[int, torch.Tensor]] = []
        """Slots of the layers' tables, and the rows of each on the host."""
        self.block_rows = BLOCK_ROWS
        self.launched_blocks = 0
        """At least as many as there are."""
        self.num_blocks = torch.zeros(1, dtype=torch.int32, device=device)
        self.blocks = torch.zeros(max_rows, 3, dtype=torch.int32, device=device)
        """Slot, first place in `row_ids`, and number of rows of each."""
        self.row_ids = torch.zeros(max_rows, dtype=torch.int64, device=device)

    def set(self, groups: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Slots, and the rows [num_rows] int64 of each, in no two groups and on the host, which
        does not wait."""
        self.groups = list(groups)
        ends = list(itertools.accumulate(len(rows) for _, rows in groups))
        # The sums of a row are made in an order that depends on the kind of block.
        may_be_wide = self.row_ids.is_cuda and not invariance.BATCH_INVARIANT
        is_wide = may_be_wide and bool(ends) and ends[-1] > MANY_ROWS
        self.block_rows = WIDE_ROWS if is_wide else BLOCK_ROWS
        blocks = [
            (slot, first, min(self.block_rows, end - first))
            for (slot, rows), end in zip(groups, ends, strict=True)
            for first in range(end - len(rows), end, self.block_rows)
        ]
        self.launched_blocks = len(blocks)
        _upload(torch.tensor([len(blocks)], dtype=torch.int32), self.num_blocks)
        if blocks:
            _upload(torch.tensor(blocks, dtype=torch.int32), self.blocks)
            _upload(torch.cat([rows for _, rows in groups]), self.row_ids)


def _upload(values: torch.Tensor, buffer: torch.Tensor) -> None:
    """To the beginning of the buffer."""
    if buffer.is_cuda:
        values = values.pin_memory()
    buffer[: len(values)].copy_(values, non_blocking=True)
