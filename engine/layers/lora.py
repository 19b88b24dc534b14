"""Low-rank adapters of linear layers (LoRA, arXiv 2106.09685), several in one batch.

A layer that may have adapters has a `LoraSite`, which holds its part of each loaded adapter by the
adapter's slot. Before a step, `LoraBatch` is told which of its tokens have which slot; after a
layer's own product the site adds x A^T B^T to those rows. A row without an adapter is not touched,
and a step without any costs a look at an empty list.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch

from pagelet.engine.layers.recording import Recorder
from pagelet.kernels.lora import AdapterRows, AdapterTable, add_adapters
from pagelet.kernels.lora.adapters import BLOCK_ROWS, Matrices
from pagelet.kernels.lora.cpu import record_low_rank


class LoraBatch:
    """The adapters of the step at hand, shared by all layers of a model."""

    def __init__(
        self, num_slots: int, max_rank: int, max_tokens: int, device: torch.device
    ) -> None:
        """`num_slots` bounds how many adapters are loaded at once, `max_tokens` a step."""
        self.num_slots = num_slots
        self.max_rank = max_rank
        self.device = device
        self.rows = AdapterRows(max_tokens, device)
        self.is_captured = False
        self.is_rehearsed = False
        """Whether layers are to run all kernels, though no adapter may be there."""

    @property
    def in_use(self) -> bool:
        """Whether the step at hand has any."""
        return bool(self.rows.groups)

    def begin(self, groups: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Of a step: slots, each with the indices of its tokens in the batch [num_rows], on the
        host."""
        self.rows.set(groups)

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """What layers do meanwhile will do for the adapters of any step of as many tokens, when it
        is replayed from a CUDA graph."""
        self.is_captured = self.is_rehearsed = True
        try:
            yield
        finally:
            self.is_captured = self.is_rehearsed = False
            self.rows.set([])


class LoraSite:
    """The adapters of one linear layer, whose outputs are those of its projections in order."""

    def __init__(self, batch: LoraBatch, part_sizes: Sequence[int]) -> None:
        self._batch = batch
        self._table = AdapterTable(batch.num_slots, part_sizes, batch.max_rank, batch.device)

    @property
    def num_parts(self) -> int:
        """Projections of the layer."""
        return len(self._table.sizes)

    def hold(self, slot: int, parts: Sequence[Matrices | None]) -> None:
        """Takes in what the adapter of a slot adds to each projection: where the layer is recorded,
        packed."""
        self._table.put(slot, parts)

    def drop(self, slot: int) -> None:
        """Lets go of a slot's adapter."""
        self._table.drop(slot)

    def add(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Adds to the layer's outputs [num_tokens, out_size] what the adapters make of its inputs
        x [num_tokens, in_size], in place."""
        rows = self._batch.rows
        if self._batch.is_captured:
            # Each adapter's last block may be nearly empty, but no block is without a row.
            rows.block_rows = BLOCK_ROWS
            rows.launched_blocks = min(len(x), len(x) // BLOCK_ROWS + self._batch.num_slots)
        if self._batch.is_rehearsed or any(any(self._table.held(slot)) for slot, _ in rows.groups):
            add_adapters(out, x, self._table, rows)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends `add` on these buffers, of the adapters that are held packed."""
        record_low_rank(recorder.program, x, out, self._table, self._batch.rows)


@dataclasses.dataclass(frozen=True)
class LoraSlot:
    """One projection's place in a site, and how this rank takes its share of an adapter."""

    site: LoraSite
    part: int
    share_a: Callable[[torch.Tensor], torch.Tensor] = lambda a: a
    """Of [rank, in_size] of the full layer."""
    share_b: Callable[[torch.Tensor], torch.Tensor] = lambda b: b
    """Of [out_size, rank] of the full layer."""
