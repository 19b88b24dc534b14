"""Random weights of each form that a GPU holds."""

import torch

from pagelet.kernels.linear.grouped import GroupedWeight


def random_weight(
    kind: str, out_size: int, in_size: int, group: int | None, seed: int, *, minima: bool = False
) -> GroupedWeight:
    """Without `group`, one group has all inputs. `minima` is for int8: int4 always has them."""
    random = torch.Generator().manual_seed(seed)
    shape = out_size, in_size
    size = group or -(-in_size // 64) * 64
    scales = torch.rand(-(-in_size // size), out_size, generator=random) + 0.5
    if kind == "int4":
        # As GPTQ and AWQ have them, the inputs before the outputs.
        values = torch.randint(0, 16, shape[::-1], generator=random, dtype=torch.uint8).T
        lowest = -8 * torch.rand(scales.shape, generator=random)
        return GroupedWeight.from_int4(values, scales / 8, lowest, size)
    if kind == "int8":
        values = torch.randint(-128, 128, shape, generator=random, dtype=torch.int8)
        lowest = torch.rand(scales.shape, generator=random) if minima else None
        return GroupedWeight("int8", values, scales / 100, lowest, size, in_size)
    values = torch.randn(shape, generator=random).to(torch.float8_e4m3fn)
    return GroupedWeight("fp8", values, scales, None, size, in_size)
