"""Random numbers that are a function of (seed, position): no state, no order of drawing.

The number of a position is output `position + 1` of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014) started from the first output of
SplitMix64 started from `seed`; the first step spreads neighbouring seeds, whose streams would
otherwise overlap. Any language with 64-bit integers reproduces it in three lines.
"""

import numpy as np
import numpy.typing as npt

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position) pair, a multiple of 2**-53.

    seeds, positions: [n]; a position is the index in the sequence of the token to be drawn.
    """
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64
        start = _mix(seeds + _GAMMA)
        bits = _mix(start + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
