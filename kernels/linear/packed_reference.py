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
        blocks, kinds = -(-packed.in_size // (2 * GROUP)), 1 if packed.format == "q8" else 2
        data = packed.data.view(panels, blocks, -1)
        number_bytes = 2 * kinds * PANEL * (4 if packed.wide_scales else 2)
        group_bytes = GROUP * PANEL // kinds
        first, numbers, second = torch.split(data, [group_bytes, number_bytes, group_bytes], dim=2)
        bytes_ = torch.stack([first, second], dim=2).view(panels, blocks, 2, -1, PANEL, 4)
        scales = _numbers(numbers, packed, kinds)
        if packed.format == "q8":
            weight = (bytes_.double() - 128) * scales[0]
        else:
            nibbles = torch.cat([bytes_ & 15, bytes_ >> 4], dim=3)
            weight = nibbles.double() * scales[0] + scales[1]
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


def _numbers(data: torch.Tensor, packed: PackedLinear, kinds: int) -> torch.Tensor:
    """Of each kind, over the words and bytes of a group: [kinds, panels, blocks, 2, 1, 16, 1]."""
    dtype = torch.float32 if packed.wide_scales else torch.float16
    numbers = data.contiguous().view(dtype).double().view(*data.shape[:2], 2, kinds, PANEL)
    return numbers.movedim(3, 0)[..., None, :, None]
