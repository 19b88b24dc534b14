"""Functions that Triton kernels call.

FP8 e4m3 is decoded and encoded by its bits, in integer operations: GPUs before sm_89 and MI300 lack
the conversions, and the result is then the same everywhere.
"""

import triton
import triton.language as tl


@triton.jit
def e4m3_to_float(bits):
    """Bytes of e4m3 (OCP, "fn": no infinities) as float32, exactly."""
    wide = bits.to(tl.uint8, bitcast=True).to(tl.uint16)
    magnitude = wide & 0x7F
    # float16 of the same bits has an exponent that is less by 15 - 7, for subnormals too.
    value = (magnitude << 7).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    value = tl.where(magnitude == 0x7F, float("nan"), value)
    return tl.where(wide >= 0x80, -value, value)


@triton.jit
def float_to_e4m3(x):
    """float32 as bytes of e4m3, to the nearest (ties to even); beyond 448 it is 448."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    clamped = tl.where(magnitude > 0x43E00000, 0x43E00000, magnitude)  # 448
    # Normal numbers: three bits of mantissa stay; a carry goes on into the exponent.
    rounded = clamped + 0x7FFFF + ((clamped >> 20) & 1)
    normal = (rounded >> 20) - (120 << 3)
    # Below 2 ** -6: a sum with 2 ** 14 has the multiple of 2 ** -9 in its last bits.
    tiny = (clamped.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    encoded = tl.where(clamped < 0x3C800000, tiny, normal)
    encoded = tl.where(magnitude > 0x7F800000, 0x7F, encoded)
    return (encoded | sign).to(tl.uint8)


@triton.jit
def sigmoid(x):
    """Without overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, e) / (1 + e)


@triton.jit
def tanh(x):
    """Without overflow."""
    e = tl.exp(-2 * tl.abs(x))
    magnitude = (1 - e) / (1 + e)
    return tl.where(x >= 0, magnitude, -magnitude)
