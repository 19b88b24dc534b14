"""Grammars' masks on their way from the engine core to the logits of a step."""

from collections.abc import Callable

import numpy as np
import torch

from pagelet.engine.runner.state import IntArray
from pagelet.engine.step import TokenMasks

MaskedRows = tuple[torch.Tensor, torch.Tensor]
"""Which rows of a step's logits have a mask [num_masked] int64, and the masks [num_masked,
num_words] int32, both on the CPU."""


def masked_rows(rows: IntArray, masks: Callable[[], TokenMasks]) -> Callable[[], MaskedRows]:
    """Waits for the masks of `rows` when it is called, as late as may be."""

    def wait() -> MaskedRows:
        words = np.frombuffer(bytearray(masks().words), np.int32).reshape(len(rows), -1)
        return torch.from_numpy(rows), torch.from_numpy(words)

    return wait
