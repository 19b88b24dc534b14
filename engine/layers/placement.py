"""Where a layer's weights live, and how the checkpoint's full tensors reach them."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import torch

from pagelet.engine.layers.context import ALONE, Ranks, TensorParallel
from pagelet.engine.layers.lora import LoraBatch, LoraSite, LoraSlot
from pagelet.engine.weights.quantized_tensor import StoredTensor, as_floats
from pagelet.kernels.linear.packed import LinearFormat

LoadFunction = Callable[[StoredTensor], None]


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the CPU library holds the weight of a linear layer."""

    format: LinearFormat
    keep_quantized: bool = False
    """What the checkpoint has quantised stays so, in place of `format`."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """Element type, device and rank of a layer's weights."""

    dtype: torch.dtype
    device: torch.device
    ranks: Ranks = ALONE
    packing: Packing | None = None
    """Of linear layers; None for a model that runs on torch's operations."""
    head_packing: Packing | None = None
    """Of the language-model head, which few bits harm most."""
    keep_quantized: bool = False
    """Without packing: what the checkpoint has quantised stays so where that is exact."""
    rounding: Literal["int8", "fp8"] | None = None
    """Without packing: linear layers are rounded to it as they are loaded, but for the head."""
    lora: LoraBatch | None = None
    """Where the linear layers learn of a step's adapters, if they may have any."""

    @property
    def tp(self) -> TensorParallel:
        """This rank's place among those that divide each layer."""
        return self.ranks.tp

    def lora_site(self, part_sizes: Sequence[int]) -> LoraSite | None:
        """For a linear layer whose projections have so many outputs on this rank."""
        return None if self.lora is None else LoraSite(self.lora, part_sizes)

    def empty(self, *shape: int) -> torch.Tensor:
        """An uninitialised weight."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def share(self, size: int) -> int:
        """This rank's part of a dimension; `check_tensor_parallel` has shown that it divides."""
        assert size % self.tp.size == 0, (size, self.tp.size)
        return size // self.tp.size


class Storage(Protocol):
    """What holds one weight or several: a tensor, or a layer's packed weights."""

    @property
    def nbytes(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Weight:
    """One tensor of the checkpoint, and a layer's way of taking its shard of it."""

    name: str
    shape: tuple[int, ...]
    """Of the full tensor."""
    load: LoadFunction
    storage: Storage
    """Of this rank; shared with the other weights that lie in it."""
    is_norm: bool = False
    """A scale of a normalisation, which starts neutral where other weights start random."""
    lora: LoraSlot | None = None
    """Where an adapter of this weight goes, if there may be any."""


Weights = Iterator[Weight]


def load_into(destination: torch.Tensor, dim: int | None = None, part: int = 0) -> LoadFunction:
    """Copies part number `part` along `dim` of a full tensor, or all of it, into a weight."""

    def load(full: StoredTensor) -> None:
        if dim is not None:
            size = destination.shape[dim]
            full = full.narrow(dim, part * size, size)
        destination.copy_(as_floats(full, destination.dtype))

    return load
