"""The KV write, a token at a time."""

import torch

from pagelet.kernels.paged_attention.pages import MAX_FP8, int8_pages, to_int8


def kv_write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Stores each token's key and value at its slot; slot = block id * block_size + offset.

    key, value: [num_tokens, num_kv_heads, head_dim] (any strides);
    kv_cache: [2, num_blocks, num_kv_heads, block_size, token_size(head_dim, dtype)], written in
    place, as `paged_attention/pages.py` says;
    slot_mapping: [num_tokens] int64, no slot twice except in the null block, whose content no one
    reads.
    """
    block_size = kv_cache.shape[3]
    for token, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, block_size)
        for pages, x in zip(kv_cache, (key[token], value[token]), strict=True):
            if kv_cache.dtype == torch.int8:
                integers, scales = int8_pages(pages)
                integers[block, :, offset], scales[block, :, offset] = to_int8(x)
            elif kv_cache.dtype == torch.float8_e4m3fn:
                pages[block, :, offset] = x.clamp(-MAX_FP8, MAX_FP8)
            else:
                pages[block, :, offset] = x
