"""The shape of a matrix product's tiles, and how many of them are loaded ahead."""

import dataclasses
from collections.abc import Sequence

from pagelet.kernels.gpu import invariance
from pagelet.kernels.gpu.architectures import Architecture


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


_INVARIANT_ROWS = 64
"""The number that stands for all, where bits must not depend on it."""


def choose_by_rows(tiles: Sequence[tuple[float, Tile]], num_rows: float) -> Tile:
    """The first of `tiles` whose bound a number of rows does not exceed; where a row's bits must
    not depend on the batch, that of a middling number for all of them."""
    rows = _INVARIANT_ROWS if invariance.BATCH_INVARIANT else num_rows
    return next(tile for most, tile in tiles if rows <= most)
