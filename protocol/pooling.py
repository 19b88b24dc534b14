"""What a request for a vector asks of the engine core, in place of sampling."""

from typing import Literal

import msgspec

PoolingType = Literal["last", "mean", "cls"]
"""Which hidden states of a prompt become its vector: the last token's, the mean of all, or the
first token's."""


class PoolingParams(msgspec.Struct, array_like=True, frozen=True):
    """How one prompt's hidden states become its vector."""

    pooling: PoolingType
    token_ids: list[int] = []
    """If there are any, the vector is the logits of these tokens in place of the states."""
