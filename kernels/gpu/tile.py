"""The shape of a matrix product's tiles, and how many of them are loaded ahead."""

import dataclasses
from collections.abc import Sequence

import torch

from pagelet.kernels.gpu import invariance
from pagelet.kernels.gpu.architectures import Architecture
from pagelet.kernels.gpu.elements import accumulator
from pagelet.kernels.gpu.launch import INTERPRETED


@dataclasses.dataclass(frozen=True)
class Tile:
    """What one program computes, and how."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int

    def fitted(self, target: Architecture, stage_bytes: int) -> "Tile":
        """With as many of its stages, of `stage_bytes` each, as the shared memory holds."""
        stages = max(1, min(self.stages, target.shared_bytes // stage_bytes))
        return dataclasses.replace(self, stages=stages)

    def constants(self, target: Architecture, dtype: torch.dtype) -> dict[str, object]:
        """What kernels of products get of it, for activations of that type."""
        return {
            "BLOCK_M": self.rows,
            "BLOCK_N": self.columns,
            "BLOCK_K": self.inner,
            "STAGES": self.stages,
            "UPCAST": INTERPRETED,
            "ACCUMULATOR": accumulator(dtype),
            "num_warps": self.warps,
            **register_option(target, dtype),
        }


_INVARIANT_ROWS = 64
"""The number that stands for all, where bits must not depend on it."""
FLOAT32_TILES = (
    (16.0, Tile(16, 32, 32, 4, 1)),
    (float("inf"), Tile(32, 32, 32, 4, 1)),
)
"""Of elements of 32 bits and more on NVIDIA's GPUs. No matrix unit multiplies float32 exactly: each
thread does, and has whole rows of its operands in registers, which larger tiles do not fit into."""


def register_option(
    target: Architecture, dtype: torch.dtype, *, crowded: bool = False
) -> dict[str, int]:
    """An option of launches of products of such elements: that a thread may have all registers,
    where the assembler would else spill some so that more blocks fit on a processor. It does so
    with elements of 32 bits, and with others if `crowded` says so."""
    spills = dtype.itemsize >= 4 or crowded
    return {"maxnreg": 255} if spills and target.is_nvidia else {}


def choose_by_rows(
    target: Architecture, tiles: Sequence[tuple[float, Tile]], num_rows: float, itemsize: int
) -> Tile:
    """The first of `tiles`, or of those for such wide elements, whose bound a number of rows does
    not exceed; where a row's bits must not depend on the batch, that of a middling number for all
    of them."""
    rows = _INVARIANT_ROWS if invariance.BATCH_INVARIANT else num_rows
    if itemsize >= 4 and target.is_nvidia:
        tiles = FLOAT32_TILES
    return next(tile for most, tile in tiles if rows <= most)
