"""FP8 by its bits, on every value."""

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.device import e4m3_to_float, float_to_e4m3


@triton.jit
def decode(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, e4m3_to_float(tl.load(x + at)))


@triton.jit
def encode(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, float_to_e4m3(tl.load(x + at)))


def every_byte() -> torch.Tensor:
    return torch.arange(256, dtype=torch.int32).to(torch.uint8)


def test_every_byte_is_decoded_exactly() -> None:
    out = torch.empty(256)
    decode[(1,)](every_byte(), out, SIZE=256)
    expected = every_byte().view(torch.float8_e4m3fn).float()
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_floats_are_rounded_as_torch_does_and_kept_within_the_largest() -> None:
    exact = every_byte().view(torch.float8_e4m3fn).float()
    exact = exact[exact.isfinite()].sort().values
    ties = (exact[1:] + exact[:-1]) / 2
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    x = torch.cat([exact, ties, ties.nextafter(up), ties.nextafter(down)])
    x = torch.nn.functional.pad(x, (0, 1024 - len(x)))
    x[-6:] = torch.tensor([1e9, -1e9, torch.inf, -torch.inf, 464.0, torch.nan])
    out = torch.empty(1024, dtype=torch.uint8)
    encode[(1,)](x, out, SIZE=1024)
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(out, expected.view(torch.uint8))
