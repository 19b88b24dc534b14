"""A checkpoint's weights under Hugging Face's parameter names, whatever it is stored as."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import safetensors
import torch

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.assemble import Assembly
from pagelet.engine.weights.dequantize import check_supported, dequantize, is_quantized, view_floats
from pagelet.engine.weights.ggml_tensor import GGMLTensor
from pagelet.engine.weights.gguf_file import GGUFError, GGUFFile, GGUFTensor
from pagelet.engine.weights.gguf_names import hf_name
from pagelet.engine.weights.quantized_tensor import StoredTensor, as_floats
from pagelet.protocol.errors import ModelSourceError

_FLOAT_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_VISION: Final = ("vision_tower.", "multi_modal_projector.")
# Of a multimodal checkpoint: before transformers 4.52, and since.
_LANGUAGE_MODEL: Final = {"language_model.": "", "model.language_model.": "model."}


def iterate_weights(
    files: ModelFiles,
    config: ModelConfig,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[str, StoredTensor]]:
    """Yields (parameter name, tensor) in the order of the files.

    Tensors come as they are stored, floats or quantised, as views of the mapped file that are
    paged in when they are read: never write to them. A tied output matrix is left out. `progress`
    gets bytes done and bytes in all. Raises ModelSourceError that names the file, where one is
    missing or damaged.
    """
    paths = files.weight_files()
    total = sum(path.stat().st_size for path in paths)
    assembly = None
    if config.quantization is not None:
        assembly = Assembly(config.quantization, _stored_names(paths))
    finished = 0
    for path in paths:
        done = finished
        stored = _gguf(path, config) if files.format == "gguf" else _shard(path, assembly)
        for name, tensor, nbytes in stored:
            done += nbytes
            if not (config.tie_word_embeddings and name == "lm_head.weight"):
                yield _with_prefix(name, config), tensor
            if progress is not None:
                progress(done, total)
        finished += path.stat().st_size
        if progress is not None:
            progress(finished, total)


def _shard(path: Path, assembly: Assembly | None) -> Iterator[tuple[str, StoredTensor, int]]:
    """Of a safetensors file: (name, tensor, bytes in the file). With `assembly`, for a quantised
    checkpoint, a weight comes when the last of its tensors is read."""
    with _open(path) as shard:
        for stored_name in shard.keys():  # noqa: SIM118 (not a mapping)
            name = _text_model_name(stored_name)
            if name is None:
                continue
            tensor: torch.Tensor = shard.get_tensor(stored_name)
            whole = (name, tensor) if assembly is None else assembly.add(path, name, tensor)
            if whole is None:
                continue
            name, weight = whole
            if isinstance(weight, torch.Tensor) and weight.dtype not in _FLOAT_DTYPES:
                raise ModelSourceError(
                    f"{path}: {stored_name} is stored as {weight.dtype}, but config.json has no "
                    "`quantization_config` that says what it means; use an unquantised checkpoint"
                )
            yield name, weight, tensor.nbytes


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Maps a safetensors file; a truncated one or one with overlapping tensors is refused."""
    try:
        with safetensors.safe_open(path, framework="pt") as shard:
            yield shard
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelSourceError(f"{path}: damaged: {error}; download it again") from error


def _stored_names(paths: Iterable[Path]) -> Iterator[str]:
    """Of a text model's tensors."""
    for path in paths:
        with _open(path) as shard:
            yield from filter(None, map(_text_model_name, shard.keys()))


def _with_prefix(name: str, config: ModelConfig) -> str:
    """A checkpoint that was saved without its head has names without the model's prefix."""
    bare = config.head == "none" and name.startswith(("layers.", "embed_tokens.", "norm."))
    return f"model.{name}" if bare else name


def _text_model_name(name: str) -> str | None:
    """Without a multimodal checkpoint's prefixes; None for what a text model doesn't have."""
    if name.removeprefix("model.").startswith(_VISION) or name.endswith("rotary_emb.inv_freq"):
        return None
    for prefix, replacement in _LANGUAGE_MODEL.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _gguf(path: Path, config: ModelConfig) -> Iterator[tuple[str, StoredTensor, int]]:
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
            weight = _load(file, tensor, tensor.shape, 0)
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
            weight = _load(file, tensor, tensor.shape[1:], expert)
            yield name, weight, tensor.nbytes // len(target.names)


def _load(file: GGUFFile, tensor: GGUFTensor, shape: tuple[int, ...], index: int) -> StoredTensor:
    """The `index`-th piece of `shape` of a tensor."""
    size = tensor.ggml_type.block_bytes * (torch.Size(shape).numel() // tensor.ggml_type.block_size)
    data = file.data(tensor.name)[index * size : (index + 1) * size]
    if not is_quantized(tensor.ggml_type):
        return view_floats(data, tensor.ggml_type, shape)
    try:
        check_supported(tensor.ggml_type)
    except ModelSourceError as error:
        raise GGUFError(f"{file.path}: {error}") from error
    if len(shape) != 2:  # a vector, of which there is little to save
        return dequantize(data, tensor.ggml_type, shape, torch.float32)
    rows = torch.from_numpy(data).view(shape[0], -1)
    return GGMLTensor(rows, tensor.ggml_type, 0, shape[1])


def _as_hugging_face(
    file: GGUFFile, weight: StoredTensor, gguf_name: str, config: ModelConfig
) -> StoredTensor:
    """Undoes what llama.cpp's converter does to some weights."""
    if config.norm_plus_one and gguf_name.endswith("norm.weight"):
        # The converter adds the 1 of Gemma's RMSNorm.
        return as_floats(weight, torch.float32) - 1
    if config.architecture in ("LlamaForCausalLM", "MixtralForCausalLM"):
        for part, num_heads in ((".attn_q.", config.num_heads), (".attn_k.", config.num_kv_heads)):
            if part in gguf_name:
                if weight.shape[0] != num_heads * config.head_dim:
                    raise GGUFError(
                        f"{file.path}: tensor {gguf_name!r} has {weight.shape[0]} rows, where the "
                        f"metadata says {num_heads} heads of {config.head_dim}"
                    )
                order = _halves_order(num_heads, config.head_dim)
                if isinstance(weight, GGMLTensor):
                    return weight.reorder_rows(order)
                assert isinstance(weight, torch.Tensor)
                return weight[order]
    return weight


def _halves_order(num_heads: int, head_dim: int) -> torch.Tensor:
    """Rows of q or k from interleaved to half-split rotary order: which row to take for each.

    For the architecture `llama` (no other) the converter interleaves the rows of each head, so that
    a pair that is rotated together lies side by side; Hugging Face's models rotate row i with row
    i + head_dim / 2.
    """
    pairs = torch.arange(num_heads * head_dim).view(num_heads, head_dim // 2, 2)
    return pairs.transpose(1, 2).flatten()
