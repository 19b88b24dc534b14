"""Logprobs in C++ equal torch's, in every instruction set."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.kernels.top_logprobs import cpu, reference, top_logprobs

MANY = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@MANY
@given(
    st.integers(0, 2**32),
    st.integers(0, 4),
    st.sampled_from([1, 7, 255, 256, 257, 1100, 9000]),
    st.integers(0, 25),
    st.booleans(),
)
def test_cpp_equals_torch(tier, seed, rows, vocab, num_top, ties):
    num_top = min(num_top, vocab)
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(rows, vocab, generator=generator)
    if ties:
        logits = logits.round()
    logits[torch.rand(rows, vocab, generator=generator) < 0.2] = -math.inf
    logits[:, vocab // 2] = 1.0
    chosen = torch.randint(0, vocab, (rows,), generator=generator)
    ids, logprobs, ranks = cpu.top_logprobs(logits, chosen, num_top)
    expected_ids, expected, expected_ranks = reference.top_logprobs(logits, chosen, num_top)
    torch.testing.assert_close(logprobs, expected, rtol=2e-6, atol=2e-6)
    assert torch.equal(ranks, expected_ranks)
    assert torch.equal(ids[:, 0], chosen)
    # Equally likely tokens come in the order of their ids.
    in_order = logits.sort(dim=-1, descending=True, stable=True).indices
    assert torch.equal(ids[:, 1:], in_order[:, :num_top])
    if not ties:
        finite = expected.isfinite()
        assert torch.equal(ids[finite], expected_ids[finite])


@pytest.mark.parametrize("implementation", sorted(top_logprobs.implementations))
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_broken_row_leaves_the_others_alone(poison, implementation):
    function = top_logprobs.implementations[implementation]
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([1, 2, 3])
    clean = function(logits, chosen, 4)
    logits[1] = poison
    ids, logprobs, ranks = function(logits, chosen, 4)
    assert ((ids >= 0) & (ids < 500)).all()
    assert logprobs[1].isnan().all()
    for got, expected in zip((ids, logprobs, ranks), clean, strict=True):
        assert torch.equal(got[[0, 2]], expected[[0, 2]])


def test_a_row_is_bit_equal_in_every_batch(tier):
    logits = 3 * torch.randn(9, 3000, generator=torch.Generator().manual_seed(1))
    chosen = torch.arange(9)
    together = top_logprobs(logits, chosen, 5)
    for row in range(9):
        at = slice(row, row + 1)
        alone = top_logprobs(logits[at], chosen[at], 5)
        for one, all_ in zip(alone, together, strict=True):
            assert torch.equal(one, all_[at])
