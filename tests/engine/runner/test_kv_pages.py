"""Copies of blocks, in caches of every type."""

import pytest
import torch

from pagelet.engine.kv.spec import make_layout
from pagelet.engine.runner.kv_pages import PageCopier, PageShape

NUM_BLOCKS = 6
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pairs", [[(1, 2)], [(1, 2), (3, 1), (1, 5)]], ids=["one", "several"])
def test_all_that_is_copied_is_read_first(dtype: torch.dtype, pairs: list[tuple[int, int]]) -> None:
    layers = range(3)
    layout = make_layout([None, 8, 8], 1)  # layers 0 and 1 share a tensor with others
    shape = PageShape(num_heads=2, block_size=4, token_size=8, dtype=dtype)
    kv = shape.allocate(layout, layers, NUM_BLOCKS, torch.device("cpu"))
    for layer in layers:
        content = torch.randint(-100, 100, kv[layer].cache.shape, dtype=torch.int8)
        kv[layer].cache.copy_(content.to(dtype))
    before = {layer: kv[layer].cache.view(torch.uint8).clone() for layer in layers}
    PageCopier(kv).copy(pairs)
    written = {target: source for source, target in pairs}
    for layer in layers:
        after = kv[layer].cache.view(torch.uint8)
        for block in range(NUM_BLOCKS):
            assert torch.equal(after[:, block], before[layer][:, written.get(block, block)])
