"""Low-rank adapters of linear layers (LoRA, arXiv 2106.09685), several in one batch.

A layer that may have adapters has a `LoraSite`, which holds its part of each loaded adapter by the
adapter's slot. Before a step, `LoraBatch` is told which of its tokens have which slot; after a
layer's own product the site adds x A^T B^T to those rows. A row without an adapter is not touched,
and a step without any costs a look at an empty list.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch

from pagelet.engine.layers.recording import Recorder
from pagelet.kernels.lora import LowRank, add_low_rank
from pagelet.kernels.lora.cpu import AdapterRows, AdapterTable, PackedLowRank, record_low_rank


class LoraBatch:
    """The adapters of the step at hand, shared by all layers of a model."""

    def __init__(self, num_slots: int) -> None:
        """`num_slots` bounds how many adapters are loaded at once."""
        self.num_slots = num_slots
        self.groups: list[tuple[int, torch.Tensor]] = []
        self._recorded: AdapterRows | None = None

    def begin(self, groups: list[tuple[int, torch.Tensor]]) -> None:
        """Of a step: slots, each with the indices of its tokens in the batch [num_rows]."""
        self.groups = groups
        if self._recorded is not None:
            self._recorded.set(groups)

    def recorded(self, max_tokens: int) -> AdapterRows:
        """The groups as recorded programs read them."""
        if self._recorded is None:
            self._recorded = AdapterRows(max_tokens)
        return self._recorded


class LoraSite:
    """The adapters of one linear layer, whose outputs are those of its projections in order."""

    def __init__(self, batch: LoraBatch, part_sizes: Sequence[int]) -> None:
        self._batch = batch
        self._part_sizes = list(part_sizes)
        self._held: dict[int, Sequence[LowRank | None]] = {}
        self._packed: dict[int, Sequence[PackedLowRank | None]] = {}
        self._table: AdapterTable | None = None
        """Of `_packed`, for the recorded layer."""

    @property
    def num_parts(self) -> int:
        """Projections of the layer."""
        return len(self._part_sizes)

    def hold(self, slot: int, parts: Sequence[LowRank | None]) -> None:
        """Takes in what the adapter of a slot adds to each projection."""
        self._held[slot] = parts

    def hold_packed(self, slot: int, parts: Sequence[PackedLowRank | None]) -> None:
        """As `hold`, where the layer is recorded."""
        assert self._table is not None
        self._table.put(slot, parts)
        self._packed[slot] = parts

    def drop(self, slot: int) -> None:
        """Lets go of a slot's adapter."""
        self._held.pop(slot, None)
        if self._table is not None:
            self._table.put(slot, [None] * self.num_parts)
            self._packed.pop(slot, None)

    def add(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Adds to the layer's outputs [num_tokens, out_size] what the adapters make of its inputs
        x [num_tokens, in_size], in place."""
        groups = [
            (rows, self._held[slot]) for slot, rows in self._batch.groups if slot in self._held
        ]
        if groups:
            add_low_rank(out, x, self._part_sizes, groups)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends `add` on these buffers, of the adapters that are held packed."""
        if self._table is None:
            self._table = AdapterTable(self._batch.num_slots, self._part_sizes)
        rows = self._batch.recorded(recorder.max_tokens)
        record_low_rank(recorder.program, x, out, self._table, rows)


@dataclasses.dataclass(frozen=True)
class LoraSlot:
    """One projection's place in a site, and how this rank takes its share of an adapter."""

    site: LoraSite
    part: int
    share_a: Callable[[torch.Tensor], torch.Tensor] = lambda a: a
    """Of [rank, in_size] of the full layer."""
    share_b: Callable[[torch.Tensor], torch.Tensor] = lambda b: b
    """Of [out_size, rank] of the full layer."""
