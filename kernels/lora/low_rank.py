"""The two matrices of an adapter on one projection."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class LowRank:
    """What an adapter adds to the weight of one projection, b @ a."""

    a: torch.Tensor  # [rank, in_size]
    b: torch.Tensor  # [out_size, rank], scaled
