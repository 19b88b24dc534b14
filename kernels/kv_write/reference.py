"""The KV write, a token at a time."""

import torch


def kv_write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Stores each token's key and value at its slot; slot = block id * block_size + offset.

    key, value: [num_tokens, num_kv_heads, head_dim] (any strides);
    kv_cache: [2, num_blocks, num_kv_heads, block_size, head_dim], written in place;
    slot_mapping: [num_tokens] int64, no slot twice except in the null block, whose content no one
    reads.
    """
    block_size = kv_cache.shape[3]
    for token, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, block_size)
        kv_cache[0, block, :, offset] = key[token]
        kv_cache[1, block, :, offset] = value[token]
