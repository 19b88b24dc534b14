"""The shape of a matrix product's tiles, and how many of them are loaded ahead."""

import dataclasses

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
