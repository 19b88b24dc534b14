"""How launches of paged attention are cut, by architecture and shape."""

import dataclasses

import triton

from pagelet.kernels.gpu import invariance
from pagelet.kernels.gpu.architectures import Architecture

MAX_SPLITS = 32
MAX_PARTIAL_BYTES = 16 << 20
"""Of the partial results of split contexts, whatever the batch."""
_MIN_SPLIT_TOKENS = 256


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a launch is cut."""

    rows: int  # of a tile of queries
    tile: int  # keys
    warps: int
    stages: int


def choose_settings(
    target: Architecture,
    group: int,
    dim_block: int,
    cache_bytes: int,
    *,
    prefill: bool,
    wide: bool = False,
    converts: bool = False,
) -> Settings:
    """By architecture and shape. Tiles of keys are as large as shared memory allows with two in
    flight; prefill has more rows of queries for each key that is read. `wide` is for elements of
    32 bits and more, which are for tests more than for speed; `converts` says that the cache has
    other ones than queries, and not of FP8."""
    least_rows = max(16, triton.next_power_of_2(group))
    if wide and target.is_nvidia:  # see FLOAT32_TILES
        return Settings(max(32 if dim_block <= 128 else 16, least_rows), 16, 8, 1)
    if wide and dim_block >= 128:
        both = not prefill or invariance.BATCH_INVARIANT
        return Settings(
            least_rows if both else max(32, least_rows), 32 if dim_block == 128 else 16, 4, 1
        )
    if not prefill or invariance.BATCH_INVARIANT:
        return Settings(least_rows, 32 if dim_block > 128 else 64, 4, 2)
    rows = max(64, least_rows)
    if target.is_nvidia:
        # Hopper's products read keys and values from shared memory, which leaves registers for a
        # wider tile; keys and values of one byte take registers on their way to two.
        narrow = cache_bytes == 1
        wide = target.name == "sm_90" or (target.name == "sm_100" and narrow)
        small = narrow and target.name == "sm_120"  # whose registers widening fills
        tile = 64 if (dim_block <= 64 and not small) or (dim_block == 128 and wide) else 32
        many_warps = dim_block > 128 or (dim_block == 128 and narrow and target.name != "sm_100")
        tight = small or (narrow and target.name == "sm_80")
        large = cache_bytes > 2 or (tight and dim_block > 128)
        return Settings(rows, tile, 8 if many_warps else 4, 1 if large and dim_block > 64 else 2)
    tile = 16 if converts and dim_block > 128 else 32
    return Settings(rows, tile, 8 if dim_block > 128 else 4, 1)


def is_crowded(target: Architecture, dim_block: int, cache_bytes: int) -> bool:
    """Whether keys and values of one byte, on their way to two, leave the assembler too few
    registers of those that it allows a thread by itself."""
    blackwell = target.name == "sm_120" or (target.name == "sm_100" and dim_block > 128)
    return cache_bytes == 1 and blackwell


def choose_splits(
    target: Architecture, programs: int, max_context: int, bytes_of_split: int
) -> int:
    """Into how many parts each context of a batch of decodes is split: enough for two programs a
    processor, of at least 256 tokens, within the bound on memory."""
    if invariance.BATCH_INVARIANT or programs == 0:
        return 1
    return max(
        1,
        min(
            2 * target.processors // programs,
            max_context // _MIN_SPLIT_TOKENS,
            MAX_PARTIAL_BYTES // bytes_of_split,
            MAX_SPLITS,
        ),
    )
