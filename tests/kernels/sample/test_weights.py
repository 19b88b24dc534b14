"""The integer weights: close to the exponential, monotone, and the same bits for ever."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from pagelet.kernels.sample.weights import UNIT, integer_weights


def weights_of(logits, temperature, maximum=0.0):
    logits = torch.as_tensor(logits)
    return integer_weights(
        logits[None], logits.new_tensor([maximum]), torch.tensor([temperature], dtype=torch.float64)
    )[0]


@given(st.floats(-60, 0, width=32), st.floats(0.05, 50), st.booleans())
def test_weights_are_the_exponential(logit, temperature, wide):
    dtype = torch.float64 if wide else torch.float32
    (got,) = weights_of(torch.tensor([logit], dtype=dtype), temperature).tolist()
    exact = UNIT * math.exp(logit / temperature)
    # Errors of 9e-8 of the polynomial, and of 2**-23 of the exponent, which is 42 at most.
    assert abs(got - exact) <= 1 + exact * (2e-7 + 42 * math.log(2) * 2**-23)


def test_weights_are_monotone():
    close = torch.nextafter(torch.arange(-30.0, 0.01, 0.25).repeat(3, 1), torch.tensor(9.0))
    close[1] = torch.nextafter(close[1], torch.tensor(9.0))
    close[2] = close[2].round()
    near_one = -torch.logspace(-12, 0, 20_000)
    logits = torch.cat([close.flatten(), torch.linspace(-31, 0, 300_001), near_one])
    logits = logits.clamp(max=0).sort().values
    for temperature in (math.log2(math.e), 1.0, 0.7):  # the first makes whole exponents of logits
        assert (weights_of(logits, temperature).diff() >= 0).all()


def test_golden_weights():
    logits = torch.tensor([0.0, -1e-8, -0.1, -1.0, -5.0, -20.0, -27.5, -28.0, -math.inf])
    assert weights_of(logits, 1.0).tolist() == [
        1 << 40,
        1 << 40,
        994879209472,
        404487733248,
        7408450560,
        2266,
        1,
        0,
        0,
    ]
    assert weights_of(logits, 0.3).tolist()[1:6] == [
        1099511562240,
        787834470400,
        39223975936,
        63527,
        0,
    ]
    assert torch.equal(weights_of(logits.double(), 1.0)[2:], weights_of(logits, 1.0)[2:])
