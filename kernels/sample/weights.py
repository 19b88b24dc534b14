"""The integer weights that tokens are drawn by, the same to the bit on every device."""

import math

import torch

UNIT_BITS = 40
"""The most likely token's weight is 2**UNIT_BITS: weights of 2**22 tokens still sum in int64."""
UNIT = 1 << UNIT_BITS

POWER_OF_TWO = (
    1.0,
    0.6931470036506653,
    0.2402295172214508,
    0.05548415333032608,
    0.009678063914179802,
    0.00124408770352602,
    0.00021715025650337338,
)
"""2**f on [0, 1] within 9e-8: the minimax polynomial among those that are right at both ends, its
coefficients rounded to float32, from the constant one up. As none is negative, rounding leaves the
polynomial monotone in f; at 1 it rounds to 2, so the whole power is monotone."""

LEAST_EXPONENT = -(UNIT_BITS + 2.0)
"""Where weights have been 0 for long."""


def integer_weights(
    logits: torch.Tensor, maximum: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """floor(2**40 * exp((logits - maximum) / temperature)), monotone in the logit.

    logits: [num_rows, vocab_size] float32 or float64; maximum: [num_rows], of the same type;
    temperature: [num_rows] float64. Returns int64 like logits. Each step is one operation of
    IEEE float32, products and sums rounded apart, so that every implementation finds the same bits.
    """
    scale = (math.log2(math.e) / temperature).to(torch.float32)
    exponent = (logits - maximum[:, None]).to(torch.float32) * scale[:, None]
    exponent.clamp_(min=LEAST_EXPONENT)
    whole = exponent.floor()
    fraction = exponent.sub_(whole)
    power = torch.full_like(fraction, POWER_OF_TWO[-1])
    for coefficient in reversed(POWER_OF_TWO[:-1]):
        power.mul_(fraction).add_(coefficient)
    return power.mul_(UNIT).to(torch.int64) >> whole.neg_().to(torch.int64)
