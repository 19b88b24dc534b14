"""The linear layer on packed weights as its definition, in float64."""

import torch
from torch.nn import functional

from pagelet.kernels.linear.packed import GROUP, PANEL, PackedLinear


def unpack(packed: PackedLinear) -> torch.Tensor:
    """The weights that the packed ones stand for, exactly: float64 [out_size, in_size]."""
    panels = -(-packed.out_size // PANEL)
    if packed.format in ("f32", "bf16"):
        dtype, pair = (torch.float32, 1) if packed.format == "f32" else (torch.bfloat16, 2)
        lanes = packed.data.view(dtype).view(panels, -1, PANEL, pair)
        weight = lanes.transpose(1, 2).reshape(panels * PANEL, -1)
    else:
        blocks = -(-packed.in_size // (2 * GROUP))
        data = packed.data.view(panels, blocks, -1)
        scale_bytes = 2 * PANEL * (4 if packed.wide_scales else 2)
        if packed.format == "q8":
            values, scales = torch.split(data, [2 * GROUP * PANEL, scale_bytes], dim=2)
            unsigned = values.reshape(panels, blocks, 2, 8, PANEL, 4)
            weight = (unsigned.double() - 128) * _by_group(scales, packed)
        else:
            sizes = [GROUP * PANEL, scale_bytes, scale_bytes]
            values, scales, minima = torch.split(data, sizes, dim=2)
            bytes_ = values.reshape(panels, blocks, 2, 4, PANEL, 4)
            nibbles = torch.cat([bytes_ & 15, bytes_ >> 4], dim=3)
            weight = nibbles.double() * _by_group(scales, packed) + _by_group(minima, packed)
        weight = weight.permute(0, 4, 1, 2, 3, 5).reshape(panels * PANEL, -1)
    return weight[: packed.out_size, : packed.in_size].double()


def prepare(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """The activations that the format computes with, in float64 [num_tokens, in_size]."""
    if packed.format == "f32":
        return x.double()
    if packed.format == "bf16":
        return x.bfloat16().double()
    groups = functional.pad(x.float(), (0, -x.shape[1] % GROUP)).view(x.shape[0], -1, GROUP)
    bound = groups.abs().amax(dim=2, keepdim=True)
    largest = torch.full_like(bound, 127)  # `127 / bound` would round twice
    values = (groups * torch.where(bound > 0, largest / bound, 0)).round()
    return (values.double() * (bound / 127).double()).flatten(1)[:, : x.shape[1]]


def linear(x: torch.Tensor, packed: PackedLinear, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias in float64, from the same activations and weights as the fast path."""
    out = prepare(x, packed) @ unpack(packed).T
    return out if bias is None else out + bias.double()


def _by_group(data: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """Numbers of [panels, blocks, group, output], over the words and bytes of a group."""
    dtype = torch.float32 if packed.wide_scales else torch.float16
    numbers = data.contiguous().view(dtype).double()
    return numbers.view(*data.shape[:2], 2, 1, PANEL, 1)
