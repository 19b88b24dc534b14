"""Matrices as FP8, GPTQ, AWQ and compressed-tensors checkpoints store them, packed a number at a
time, and the floats that they stand for."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

Pieces = dict[str, torch.Tensor]
GROUP = 32


@dataclasses.dataclass(frozen=True)
class Format:
    """`quantize` takes a matrix [out, in] and gives its tensors and its rounded floats."""

    config: dict[str, Any]
    quantize: Callable[[torch.Tensor], tuple[Pieces, torch.Tensor]]
    exact: str | None
    """What the CPU library can hold it as without rounding anew."""


def pack_words(numbers: torch.Tensor, bits: int, order: list[int] | None = None) -> torch.Tensor:
    """Along the last dimension; `order[i]` is which of a word's numbers its i-th place holds."""
    per_word = 32 // bits
    padded = torch.nn.functional.pad(numbers.long(), (0, -numbers.shape[-1] % per_word))
    words = torch.zeros(*padded.shape[:-1], padded.shape[-1] // per_word, dtype=torch.int64)
    for place in range(per_word):
        words |= padded[..., (order or range(per_word))[place] :: per_word] << (place * bits)
    return words.to(torch.int32)  # wraps


def _integers(
    weight: torch.Tensor, bits: int, group: torch.Tensor, *, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unsigned [out, in], float16 scales and zeros [out, groups] by the range of each group."""
    top = (1 << bits) - 1
    scales, zeros = [], []
    for index in range(int(group.max()) + 1):
        part = weight[:, group == index]
        if symmetric:
            scale = part.abs().amax(1) / (top // 2)
            zeros.append(torch.full_like(scale, (top + 1) // 2))
        else:
            low = part.amin(1).clamp(max=0)
            scale = (part.amax(1).clamp(min=0) - low) / top
            zeros.append((-low / scale).round().clamp(1, top))
        scales.append(scale)
    scale, zero = torch.stack(scales, 1).half(), torch.stack(zeros, 1)
    wide = scale.to(weight.dtype)
    values = (weight / wide[:, group] + zero[:, group]).round().clamp(0, top)
    return values, scale, zero


def _shuffled(group: torch.Tensor) -> torch.Tensor:
    return group[torch.randperm(len(group), generator=torch.Generator().manual_seed(1))]


def _floats(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, group: torch.Tensor
) -> torch.Tensor:
    return (values - zero[:, group]) * scale.to(values.dtype)[:, group]


def _gptq(bits: int, *, symmetric: bool, act_order: bool, v2: bool = False) -> Format:
    def quantize(weight: torch.Tensor) -> tuple[Pieces, torch.Tensor]:
        group = torch.arange(weight.shape[1]) // GROUP
        if act_order:
            group = _shuffled(group)
        values, scale, zero = _integers(weight, bits, group, symmetric=symmetric)
        pieces = {
            "qweight": pack_words(values, bits).T.contiguous(),
            "qzeros": pack_words(zero.T - (0 if v2 else 1), bits),
            "scales": scale.T.contiguous(),
            "g_idx": group.to(torch.int32),
        }
        return pieces, _floats(values, scale, zero, group)

    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": act_order}
    if v2:
        config["checkpoint_format"] = "gptq_v2"
    exact = "q4" if bits == 4 else "q8" if symmetric else None
    return Format(config | {"sym": symmetric}, quantize, None if act_order else exact)


def _awq(weight: torch.Tensor) -> tuple[Pieces, torch.Tensor]:
    group = torch.arange(weight.shape[1]) // GROUP
    values, scale, zero = _integers(weight, 4, group, symmetric=False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    pieces = {
        "qweight": pack_words(values.T, 4, order),
        "qzeros": pack_words(zero.T, 4, order),
        "scales": scale.T.contiguous(),
    }
    return pieces, _floats(values, scale, zero, group)


def _packed(bits: int, *, symmetric: bool, act_order: bool) -> Format:
    def quantize(weight: torch.Tensor) -> tuple[Pieces, torch.Tensor]:
        group = torch.arange(weight.shape[1]) // GROUP
        if act_order:
            group = _shuffled(group)
        values, scale, zero = _integers(weight, bits, group, symmetric=symmetric)
        pieces = {
            "weight_packed": pack_words(values, bits),
            "weight_scale": scale.bfloat16(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            pieces["weight_zero_point"] = pack_words(zero.T, bits).T.contiguous()
        if act_order:
            pieces["weight_g_idx"] = group.to(torch.int32)
        return pieces, _floats(values, scale.bfloat16(), zero, group)

    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP}
    config = compressed_tensors("pack-quantized", weights | {"symmetric": symmetric})
    return Format(config, quantize, None if act_order else "q4" if bits == 4 else "q8")


def compressed_tensors(format: str, weights: dict[str, Any]) -> dict[str, Any]:
    """A `quantization_config` with one group."""
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def _scaled(
    config: dict[str, Any],
    block: Callable[[torch.Size], tuple[int, int]],
    dtype: torch.dtype,
    name: str = "weight_scale",
    shape: tuple[int, ...] | None = None,
) -> Format:
    largest = 127 if dtype == torch.int8 else torch.finfo(dtype).max

    def quantize(weight: torch.Tensor) -> tuple[Pieces, torch.Tensor]:
        rows, columns = block(weight.shape)
        scales = torch.stack(
            [
                torch.stack([part.abs().max() for part in strip.split(columns, dim=1)])
                for strip in weight.split(rows)
            ]
        ).float()
        scales /= largest
        spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        spread = spread[: weight.shape[0], : weight.shape[1]].to(weight.dtype)
        values = weight / spread
        stored = (values.round() if dtype == torch.int8 else values).to(dtype)
        pieces = {
            "weight": stored,
            name: scales if shape is None else scales.reshape(shape),
            "input_scale": torch.ones(()),
        }
        return pieces, stored.to(weight.dtype) * spread

    return Format(config, quantize, "q8" if dtype == torch.int8 else None)


_FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
_E4M3 = torch.float8_e4m3fn
FORMATS: dict[str, Format] = {
    "fp8-blocks": _scaled(
        {"quant_method": "fp8", "weight_block_size": [24, 40], "fmt": "e4m3"},
        lambda shape: (24, 40),
        _E4M3,
        "weight_scale_inv",
    ),
    "fp8-tensor": _scaled(
        {"quant_method": "fp8", "activation_scheme": "static"}, tuple, _E4M3, shape=()
    ),
    "ct-fp8-tensor": _scaled(
        compressed_tensors("float-quantized", _FP8 | {"strategy": "tensor"}),
        tuple,
        _E4M3,
        shape=(1,),
    ),
    "ct-fp8-channels": _scaled(
        compressed_tensors("float-quantized", _FP8 | {"strategy": "channel"}),
        lambda shape: (1, shape[1]),
        _E4M3,
    ),
    "ct-fp8-blocks": _scaled(
        compressed_tensors(
            "float-quantized", _FP8 | {"strategy": "block", "block_structure": [32, 32]}
        ),
        lambda shape: (32, 32),
        _E4M3,
    ),
    "ct-int8-channels": _scaled(
        compressed_tensors("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
        lambda shape: (1, shape[1]),
        torch.int8,
    ),
    "ct-int4": _packed(4, symmetric=True, act_order=False),
    "ct-int4-zeros": _packed(4, symmetric=False, act_order=False),
    "ct-int4-order": _packed(4, symmetric=True, act_order=True),
    "ct-int8-packed": _packed(8, symmetric=True, act_order=False),
    "gptq-4": _gptq(4, symmetric=True, act_order=False),
    "gptq-4-zeros": _gptq(4, symmetric=False, act_order=False),
    "gptq-4-zeros-v2": _gptq(4, symmetric=False, act_order=False, v2=True),
    "gptq-4-order": _gptq(4, symmetric=False, act_order=True),
    "gptq-8": _gptq(8, symmetric=True, act_order=False),
    "gptq-8-zeros": _gptq(8, symmetric=False, act_order=False),
    "awq": Format(
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, _awq, "q4"
    ),
}
