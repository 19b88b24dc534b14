"""Low-rank adapters of linear layers (LoRA, arXiv 2106.09685), several in one batch.

A layer that may have adapters has a `LoraSite`. Before a step, `LoraBatch` is told which of its
tokens have which adapter; after a layer's own product the site adds x A^T B^T to those rows. A row
without an adapter is not touched, and a step without any costs a look at an empty list.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

from pagelet.engine.layers.recording import Recorder


@dataclasses.dataclass(frozen=True)
class LowRank:
    """What an adapter adds to the weight of one projection, b @ a: this rank's share."""

    a: torch.Tensor  # [rank, in_size]
    b: torch.Tensor  # [out_size, rank], scaled

    @property
    def nbytes(self) -> int:
        """In memory."""
        return self.a.nbytes + self.b.nbytes


SiteWeights = Mapping["LoraSite", Sequence[LowRank | None]]
"""An adapter: for each layer that it changes what it adds to each of its projections."""


@dataclasses.dataclass
class LoraBatch:
    """The adapters of the step at hand, shared by all layers of a model."""

    groups: list[tuple[SiteWeights, torch.Tensor]] = dataclasses.field(default_factory=list)
    """Each with the indices of its tokens in the batch [num_rows]."""


class LoraSite:
    """The adapters of one linear layer, whose outputs are those of its projections in order."""

    def __init__(self, batch: LoraBatch, part_sizes: Sequence[int]) -> None:
        self._batch = batch
        self._part_sizes = list(part_sizes)

    @property
    def num_parts(self) -> int:
        """Projections of the layer."""
        return len(self._part_sizes)

    def add(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Adds to the layer's outputs [num_tokens, out_size] what the adapters make of its inputs
        x [num_tokens, in_size], in place."""
        for adapter, rows in self._batch.groups:
            parts = adapter.get(self)
            if parts is None:
                continue
            own = x[rows]
            of_parts = torch.split(out, self._part_sizes, dim=1)
            for columns, part in zip(of_parts, parts, strict=True):
                if part is not None:
                    columns.index_add_(0, rows, (own @ part.a.T) @ part.b.T)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends `add` on these buffers."""
        recorder.call(lambda num_tokens: self.add(x[:num_tokens], out[:num_tokens]))


@dataclasses.dataclass(frozen=True)
class LoraSlot:
    """One projection's place in a site, and how this rank takes its share of an adapter."""

    site: LoraSite
    part: int
    share_a: Callable[[torch.Tensor], torch.Tensor] = lambda a: a
    """Of [rank, in_size] of the full layer."""
    share_b: Callable[[torch.Tensor], torch.Tensor] = lambda b: b
    """Of [out_size, rank] of the full layer."""
