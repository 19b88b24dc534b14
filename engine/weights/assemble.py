"""The several tensors of each quantised matrix of a safetensors checkpoint, as one weight.

Sources of the layouts: AutoGPTQ and AutoAWQ (the linear layers that pack them), compressed-tensors
(its compressors of formats), and the FP8 checkpoints of DeepSeek-V3 and Qwen3.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch

from pagelet.engine.model_config import WeightQuantization
from pagelet.engine.weights.quantized_tensor import StoredTensor
from pagelet.engine.weights.scaled_tensor import PackedIntegers, ScaledTensor
from pagelet.protocol.errors import ModelSourceError

# The tensor whose presence says that a module's matrix is quantised, and those that belong to it.
_MARK: Final = {
    "scaled": ("weight_scale", "weight_scale_inv"),
    "packed": ("weight_packed",),
    "gptq": ("qweight",),
    "awq": ("qweight",),
}
_PIECES: Final = {
    "scaled": ("weight", "weight_scale", "weight_scale_inv", "weight_zero_point"),
    "packed": (
        "weight_packed",
        "weight_scale",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
    ),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "awq": ("qweight", "qzeros", "scales"),
}
# What the checkpoint knows of activations and of a quantised KV cache, which are not rounded so.
_OF_ACTIVATIONS: Final = (
    "input_scale",
    "input_scale_ub",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "activation_scale",
    "k_scale",
    "k_zero_point",
    "q_scale",
    "v_scale",
    "v_zero_point",
)
# Which of a word's places holds each of eight neighbours, in AWQ's order.
_AWQ_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
_STORED_VALUES: Final = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


class Assembly:
    """Tensors go in one by one, in any order; weights come out when they are complete."""

    def __init__(self, quantization: WeightQuantization, names: Iterable[str]) -> None:
        """`names` are those of all tensors that will be added."""
        self._quantization = quantization
        layout = quantization.layout
        split = [_split(name) for name in names]
        self._quantized = {module for module, piece in split if piece in _MARK[layout]}
        self._waiting: dict[str, set[str]] = {module: set() for module in self._quantized}
        for module, piece in split:
            if module in self._quantized and piece in _PIECES[layout]:
                self._waiting[module].add(piece)
        self._pieces: dict[str, dict[str, torch.Tensor]] = {}

    def add(self, path: Path, name: str, tensor: torch.Tensor) -> tuple[str, StoredTensor] | None:
        """The weight that the tensor is, or that it completes; None if it completes none. Raises
        ModelSourceError, naming the file, for tensors that don't belong together."""
        module, piece = _split(name)
        if piece in _OF_ACTIVATIONS:
            return None
        if module not in self._quantized or piece not in _PIECES[self._quantization.layout]:
            return name, tensor
        pieces = self._pieces.setdefault(module, {})
        pieces[piece] = tensor
        waiting = self._waiting[module]
        waiting.discard(piece)
        if waiting:
            return None
        del self._pieces[module]
        try:
            weight = _BUILD[self._quantization.layout](pieces, self._quantization)
        except _DoNotFitError as error:
            raise ModelSourceError(
                f"{path}: {module}: {error}; the checkpoint is damaged, or its "
                "`quantization_config` is that of another"
            ) from error
        return f"{module}.weight", weight


class _DoNotFitError(Exception):
    """Says which tensors of a matrix don't fit each other."""


_Pieces = dict[str, torch.Tensor]


def _split(name: str) -> tuple[str, str]:
    """A tensor's name as module and piece."""
    module, _, piece = name.rpartition(".")
    return module, piece


def _build_scaled(pieces: _Pieces, quantization: WeightQuantization) -> ScaledTensor:
    """`weight` [out, in] times `weight_scale`, or `weight_scale_inv`, which is no inverse either:
    of the whole, of each output, or of each block."""
    weight = _piece(pieces, "weight")
    if weight.dtype not in _STORED_VALUES or weight.ndim != 2:
        raise _DoNotFitError(f"it has scales, but a weight of {weight.dtype} {[*weight.shape]}")
    name = "weight_scale" if "weight_scale" in pieces else "weight_scale_inv"
    scales = pieces[name].float()
    out_size, in_size = weight.shape
    rows, columns = quantization.block_shape or (out_size, in_size)
    if scales.numel() == 1:
        rows, columns = out_size, in_size
        scales = scales.reshape(1, 1)
    elif quantization.block_shape is None:
        rows = 1
        scales = scales.reshape(-1, 1)
    _check_shape(name, scales, (-(-out_size // rows), -(-in_size // columns)))
    zeros = pieces.get("weight_zero_point")
    if zeros is not None:
        zeros = zeros.reshape(scales.shape) if zeros.numel() == scales.numel() else zeros
        _check_shape("weight_zero_point", zeros, scales.shape)
    return ScaledTensor(
        weight, scales, zeros, torch.arange(out_size) // rows, torch.arange(in_size) // columns
    )


def _build_packed(pieces: _Pieces, quantization: WeightQuantization) -> ScaledTensor:
    """`weight_packed` [out, in / per word], integers raised by 2**(bits - 1); `weight_scale`
    [out, groups]; `weight_zero_point` [out / per word, groups]; `weight_g_idx` as GPTQ's."""
    words, scales = _piece(pieces, "weight_packed"), _piece(pieces, "weight_scale").float()
    shape = _piece(pieces, "weight_shape").tolist()
    if words.dtype != torch.int32 or words.ndim != 2 or len(shape) != 2:
        raise _DoNotFitError("weight_packed is no matrix of int32, or weight_shape no pair")
    out_size, in_size = shape
    bits = next((b for b in (4, 8) if words.shape == (out_size, _words(in_size, b))), None)
    if bits is None:
        raise _DoNotFitError(
            f"weight_packed has shape {[*words.shape]}, which is neither 4 nor 8 bits a weight of "
            f"{shape}"
        )
    if scales.numel() == 1:
        scales = scales.reshape(1, 1).expand(out_size, 1)
    if scales.ndim != 2 or len(scales) != out_size or in_size % scales.shape[1]:
        raise _DoNotFitError(f"weight_scale has shape {[*scales.shape]}, the weight {shape}")
    middle = 1 << (bits - 1)
    if (packed_zeros := pieces.get("weight_zero_point")) is None:
        zeros = torch.full_like(scales, middle)
    elif packed_zeros.dtype == torch.int32:
        _check_shape("weight_zero_point", packed_zeros, (_words(out_size, bits), scales.shape[1]))
        zeros = PackedIntegers(packed_zeros, bits, 0, 0, out_size).unpack()
    else:
        _check_shape("weight_zero_point", packed_zeros, scales.shape)
        zeros = packed_zeros.to(torch.int16) + middle
    return ScaledTensor(
        PackedIntegers(words, bits, 1, 0, in_size),
        scales,
        zeros,
        torch.arange(out_size),
        _column_group(pieces.get("weight_g_idx"), in_size, in_size // scales.shape[1], scales),
    )


def _build_gptq(pieces: _Pieces, quantization: WeightQuantization) -> ScaledTensor:
    """`qweight` [in / per word, out], `qzeros` [groups, out / per word], `scales` [groups, out],
    and `g_idx` [in]: the group of each input, in any order if activations ordered them."""
    bits = quantization.bits
    words, packed_zeros, scales = _inputs_first(pieces)
    in_size, out_size = words.shape[0] * (32 // bits), words.shape[1]
    groups = _num_groups(quantization, in_size)
    _check_shape("scales", scales, (groups, out_size))
    _check_shape("qzeros", packed_zeros, (groups, _words(out_size, bits)))
    zeros = PackedIntegers(packed_zeros, bits, 1, 0, out_size).unpack()
    if quantization.zeros_less_one:
        zeros = (zeros + 1) & ((1 << bits) - 1)
    return ScaledTensor(
        PackedIntegers(words.T, bits, 1, 0, in_size),
        scales.T.float(),
        zeros.T,
        torch.arange(out_size),
        _column_group(pieces.get("g_idx"), in_size, quantization.group_size or in_size, scales.T),
    )


def _build_awq(pieces: _Pieces, quantization: WeightQuantization) -> ScaledTensor:
    """`qweight` [in, out / 8] and `qzeros` [groups, out / 8], each word's outputs out of order;
    `scales` [groups, out]."""
    bits = quantization.bits
    words, packed_zeros, scales = _inputs_first(pieces)
    in_size, out_size = words.shape[0], words.shape[1] * (32 // bits)
    groups = _num_groups(quantization, in_size)
    _check_shape("scales", scales, (groups, out_size))
    _check_shape("qzeros", packed_zeros, (groups, words.shape[1]))
    zeros = PackedIntegers(packed_zeros, bits, 1, 0, out_size, _AWQ_PLACES).unpack()
    return ScaledTensor(
        PackedIntegers(words.T, bits, 0, 0, out_size, _AWQ_PLACES),
        scales.T.float(),
        zeros.T,
        torch.arange(out_size),
        _column_group(None, in_size, quantization.group_size or in_size, scales.T),
    )


_BUILD: Final = {
    "scaled": _build_scaled,
    "packed": _build_packed,
    "gptq": _build_gptq,
    "awq": _build_awq,
}


def _piece(pieces: _Pieces, name: str) -> torch.Tensor:
    if name not in pieces:
        raise _DoNotFitError(f"{name} is missing")
    return pieces[name]


def _inputs_first(pieces: _Pieces) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """qweight and qzeros, which are words, and scales."""
    words, zeros, scales = (_piece(pieces, name) for name in ("qweight", "qzeros", "scales"))
    for name, tensor in (("qweight", words), ("qzeros", zeros)):
        if tensor.dtype != torch.int32 or tensor.ndim != 2:
            raise _DoNotFitError(f"{name} is {tensor.dtype} {[*tensor.shape]}, no matrix of int32")
    return words, zeros, scales


def _words(count: int, bits: int) -> int:
    """int32 words that hold so many integers."""
    return -(-count // (32 // bits))


def _num_groups(quantization: WeightQuantization, in_size: int) -> int:
    return -(-in_size // (quantization.group_size or in_size))


def _check_shape(name: str, tensor: torch.Tensor, expected: Iterable[int]) -> None:
    if (found := [*tensor.shape]) != (wanted := [*expected]):
        raise _DoNotFitError(f"{name} has shape {found}, where {wanted} is expected")


def _column_group(
    order: torch.Tensor | None, in_size: int, group_size: int, scales: torch.Tensor
) -> torch.Tensor:
    """The column of `scales` of each input, [in_size] int64."""
    if order is None or (order < 0).any():  # compressed-tensors stores -1 where there is no order
        return torch.arange(in_size) // group_size
    if order.shape != (in_size,) or order.max() >= scales.shape[1]:
        raise _DoNotFitError(
            f"the order of {[*order.shape]} inputs names more than {scales.shape[1]} groups, or "
            f"other than {in_size} inputs"
        )
    return order.long()
