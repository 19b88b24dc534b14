"""The two matrices of an adapter on one projection."""

import dataclasses
from typing import Final

import torch
from torch.nn import functional

RANK_MULTIPLE: Final = 16
"""Of ranks in memory, so that rows of `b` begin where a GPU reads several numbers at once."""


@dataclasses.dataclass(frozen=True)
class LowRank:
    """What an adapter adds to the weight of one projection, b @ a; both contiguous."""

    a: torch.Tensor  # [rank, in_size]
    b: torch.Tensor  # [out_size, rank], scaled

    @property
    def addresses(self) -> tuple[int, int]:
        """Of both."""
        return self.a.data_ptr(), self.b.data_ptr()

    @property
    def rank(self) -> int:
        """Rows of `a`."""
        return self.a.shape[0]

    def padded(self) -> "LowRank":
        """The same product, of a rank that is a multiple of `RANK_MULTIPLE`."""
        more = -self.rank % RANK_MULTIPLE
        if not more:
            return self
        return LowRank(functional.pad(self.a, (0, 0, 0, more)), functional.pad(self.b, (0, more)))
