"""Token masks in Triton: forbidden logits are overwritten, and no others are touched (as XGrammar's
bitmask kernel, arXiv 2411.15100)."""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.launch import Example, fake, launch

_BLOCK = 4096


@triton.jit(do_not_specialize=["vocab_size", "num_words"])
def mask_tokens_kernel(
    logits,  # [rows, vocab_size], rows at a stride
    rows,  # [num_masked]
    words,  # [num_masked, num_words]
    logits_stride,
    vocab_size,
    num_words,
    BLOCK: tl.constexpr,
):
    mask_row = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + mask_row).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word_at = words + mask_row * num_words + tokens // 32
    word = tl.load(word_at, mask=tokens // 32 < num_words, other=0)
    forbidden = (word >> (tokens % 32)) & 1 == 0
    infinite = tl.full((BLOCK,), float("-inf"), logits.dtype.element_ty)
    at = logits + row * logits_stride + tokens
    tl.store(at, infinite, mask=forbidden & (tokens < vocab_size))


def mask_tokens(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """As `reference.mask_tokens`. Rows and words are copied to the device without a wait."""
    vocab_size = logits.shape[-1]
    assert logits.stride(1) == 1, "the kernel takes rows of contiguous logits"
    launch(
        mask_tokens_kernel,
        (rows.shape[0], triton.cdiv(vocab_size, _BLOCK)),
        logits,
        _on(logits.device, rows),
        _on(logits.device, words),
        logits.stride(0),
        vocab_size,
        words.shape[1],
        BLOCK=_BLOCK,
        num_warps=4,
    )


def _on(device: torch.device, x: torch.Tensor) -> torch.Tensor:
    """On the device; memory that isn't pinned would make the host wait for the copy."""
    if x.device.type == "cpu" and device.type == "cuda":
        x = x.pin_memory()
    return x.contiguous().to(device, non_blocking=True)


def examples() -> Iterator[Example]:
    """The logits of one step."""
    logits = fake(64, 128256, dtype=torch.float32)
    rows, words = fake(8, dtype=torch.int64), fake(8, 4008, dtype=torch.int32)
    yield Example("fp32 logits", partial(mask_tokens, logits, rows, words))
