import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.kernels.token_mask import mask_tokens

_FAST = [name for name in mask_tokens.implementations if name != "reference"]


@pytest.mark.parametrize("name", _FAST)
@settings(max_examples=40)
@given(
    vocab_size=st.integers(1, 130),
    missing_words=st.integers(0, 2),
    masked=st.lists(st.integers(0, 4), unique=True, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_reference(
    name: str, vocab_size: int, missing_words: int, masked: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    num_words = max(1, -(-vocab_size // 32) - missing_words)
    words = rng.integers(-(2**31), 2**31, (len(masked), num_words)).astype(np.int32)
    logits = torch.from_numpy(rng.normal(size=(5, vocab_size)).astype(np.float32))
    logits[:, 0] = torch.nan  # masked or not, other logits stay to the bit
    expected, actual = logits.clone(), logits.clone()
    rows = torch.tensor(masked, dtype=torch.int64)
    mask_tokens.implementations["reference"](expected, rows, torch.from_numpy(words))
    mask_tokens.implementations[name](actual, rows, torch.from_numpy(words))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    untouched = sorted(set(range(5)) - set(masked))
    assert torch.equal(actual[untouched, 1:], logits[untouched, 1:])
