"""A checkpoint's weights under Hugging Face's parameter names, whatever it is stored as."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import safetensors
import torch

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.dequantize import dequantize, is_quantized, view_floats
from pagelet.engine.weights.errors import ModelSourceError
from pagelet.engine.weights.gguf_file import GGUFError, GGUFFile, GGUFTensor
from pagelet.engine.weights.gguf_names import hf_name

_FLOAT_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_VISION: Final = ("vision_tower.", "multi_modal_projector.")
# Of a multimodal checkpoint: before transformers 4.52, and since.
_LANGUAGE_MODEL: Final = {"language_model.": "", "model.language_model.": "model."}


def iterate_weights(
    files: ModelFiles,
    config: ModelConfig,
    progress: Callable[[int, int], None] | None = None,
    *,
    dequantized_dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (parameter name, tensor) in the order of the files.

    Floats come as they are stored, as views of the mapped file that are paged in when they are
    read: copy them, and never write to them. Quantised tensors are unpacked to
    `dequantized_dtype`, one at a time. A tied output matrix is left out. `progress` gets bytes
    done and bytes in all. Raises ModelSourceError that names the file, where one is missing or
    damaged.
    """
    paths = files.weight_files()
    total = sum(path.stat().st_size for path in paths)
    finished = 0
    for path in paths:
        done = finished
        stored = _gguf(path, config, dequantized_dtype) if files.format == "gguf" else _shard(path)
        for name, tensor, nbytes in stored:
            done += nbytes
            if not (config.tie_word_embeddings and name == "lm_head.weight"):
                yield name, tensor
            if progress is not None:
                progress(done, total)
        finished += path.stat().st_size
        if progress is not None:
            progress(finished, total)


def _shard(path: Path) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Of a safetensors file: (name, tensor, bytes in the file)."""
    try:
        # Maps the file; a truncated one or one with overlapping tensors is refused here.
        with safetensors.safe_open(path, framework="pt") as shard:
            for stored_name in shard.keys():  # noqa: SIM118 (not a mapping)
                name = _text_model_name(stored_name)
                if name is None:
                    continue
                tensor: torch.Tensor = shard.get_tensor(stored_name)
                if tensor.dtype not in _FLOAT_DTYPES:
                    raise ModelSourceError(
                        f"{path}: {stored_name} is stored as {tensor.dtype}, which can't be "
                        "loaded; use an unquantised checkpoint"
                    )
                yield name, tensor, tensor.nbytes
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelSourceError(f"{path}: damaged: {error}; download it again") from error


def _text_model_name(name: str) -> str | None:
    """Without a multimodal checkpoint's prefixes; None for what a text model doesn't have."""
    if name.removeprefix("model.").startswith(_VISION) or name.endswith("rotary_emb.inv_freq"):
        return None
    for prefix, replacement in _LANGUAGE_MODEL.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _gguf(
    path: Path, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Of a GGUF file: (name, tensor, bytes in the file)."""
    file = GGUFFile(path)
    for tensor in file.tensors.values():
        try:
            target = hf_name(tensor.name, config)
        except KeyError as error:
            raise GGUFError(
                f"{path}: tensor {tensor.name!r} is no part of {config.architecture}"
            ) from error
        if target is None:
            continue
        if not target.stacked:
            weight = _load(file, tensor, tensor.shape, 0, dtype)
            yield (
                target.names[0],
                _as_hugging_face(file, weight, tensor.name, config),
                tensor.nbytes,
            )
            continue
        if tensor.shape[0] != len(target.names):
            raise GGUFError(
                f"{path}: tensor {tensor.name!r} stacks {tensor.shape[0]} experts, where the "
                f"metadata says {len(target.names)}"
            )
        for expert, name in enumerate(target.names):
            weight = _load(file, tensor, tensor.shape[1:], expert, dtype)
            yield name, weight, tensor.nbytes // len(target.names)


def _load(
    file: GGUFFile, tensor: GGUFTensor, shape: tuple[int, ...], index: int, dtype: torch.dtype
) -> torch.Tensor:
    """The `index`-th piece of `shape` of a tensor."""
    size = tensor.ggml_type.block_bytes * (torch.Size(shape).numel() // tensor.ggml_type.block_size)
    data = file.data(tensor.name)[index * size : (index + 1) * size]
    if not is_quantized(tensor.ggml_type):
        return view_floats(data, tensor.ggml_type, shape)
    try:
        return dequantize(data, tensor.ggml_type, shape, dtype)
    except ModelSourceError as error:
        raise GGUFError(f"{file.path}: {error}") from error


def _as_hugging_face(
    file: GGUFFile, weight: torch.Tensor, gguf_name: str, config: ModelConfig
) -> torch.Tensor:
    """Undoes what llama.cpp's converter does to some weights."""
    if config.norm_plus_one and gguf_name.endswith("norm.weight"):
        return weight - 1  # the converter adds the 1 of Gemma's RMSNorm
    if config.architecture in ("LlamaForCausalLM", "MixtralForCausalLM"):
        for part, num_heads in ((".attn_q.", config.num_heads), (".attn_k.", config.num_kv_heads)):
            if part in gguf_name:
                if weight.shape[0] != num_heads * config.head_dim:
                    raise GGUFError(
                        f"{file.path}: tensor {gguf_name!r} has {weight.shape[0]} rows, where the "
                        f"metadata says {num_heads} heads of {config.head_dim}"
                    )
                return _to_halves(weight, num_heads)
    return weight


def _to_halves(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of q or k from interleaved to half-split rotary order.

    For the architecture `llama` (no other) the converter interleaves the rows of each head, so that
    a pair that is rotated together lies side by side; Hugging Face's models rotate row i with row
    i + head_dim / 2.
    """
    # [num_heads, head_dim / 2, 2, ...] to [num_heads, 2, head_dim / 2, ...]
    pairs = weight.view(num_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
