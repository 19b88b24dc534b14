"""The KV write as two scatters."""

import torch


def kv_write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """As `reference.kv_write`."""
    block_size = kv_cache.shape[3]
    block = slot_mapping // block_size
    offset = slot_mapping % block_size
    kv_cache[0][block, :, offset] = key
    kv_cache[1][block, :, offset] = value
