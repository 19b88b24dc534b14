"""`quantization_config` of a config.json: how a checkpoint's weights are quantised."""

from typing import Any, Final

from pagelet.engine.model_config import WeightQuantization
from pagelet.engine.weights.fields import Fields
from pagelet.protocol.errors import ModelSourceError

_WHERE: Final = "config.json: `quantization_config`"
_SUPPORTED: Final = (
    "fp8, fbgemm_fp8, compressed-tensors (FP8, int8, and int4 packed), gptq (4 and 8 bits) and awq "
    "(4 bits, version gemm)"
)
# compressed-tensors: which tensors a matrix has.
_FORMATS: Final = ("float-quantized", "naive-quantized", "int-quantized", "pack-quantized")


def read_quantization(config: dict[str, Any]) -> WeightQuantization | None:
    """Of a config.json's contents; None for a checkpoint of floats. Raises ModelSourceError for a
    method or a variant of one that can't be read, naming those that can."""
    outer = Fields(config, "config.json")
    key = "quantization_config" if "quantization_config" in outer else "compression_config"
    values = outer.mapping(key)
    if not values:
        return None
    fields = Fields(values, _WHERE)
    method = fields.string("quant_method") if "quant_method" in fields else key
    if method == "fp8":
        return WeightQuantization("scaled", block_shape=_block_shape(fields, "weight_block_size"))
    if method == "fbgemm_fp8":
        return WeightQuantization("scaled")
    if method == "gptq":
        return _gptq(fields)
    if method == "awq":
        return _awq(fields)
    if method in ("compressed-tensors", "compression_config"):
        return _compressed_tensors(fields)
    raise ModelSourceError(
        f"config.json: the checkpoint is quantised by {method!r:.80}, which can't be loaded; "
        f"supported are: {_SUPPORTED}. Use a checkpoint of one of these, an unquantised one, or a "
        "GGUF file of the model"
    )


def _gptq(fields: Fields) -> WeightQuantization:
    bits = fields.integer("bits")
    if bits not in (4, 8):
        raise fields.wrong("bits", "4 or 8")
    # Exceptions for single modules: those with a minus are not quantised, which names tell.
    overrides = [pattern for pattern in fields.mapping("dynamic") if not pattern.startswith("-")]
    if overrides:
        raise fields.wrong("dynamic", "no module with settings of its own")
    checkpoint_format = "gptq"
    if "checkpoint_format" in fields:
        checkpoint_format = fields.string("checkpoint_format")
    if checkpoint_format not in ("gptq", "gptq_v2"):
        raise fields.wrong("checkpoint_format", "gptq or gptq_v2")
    return WeightQuantization(
        "gptq", bits, _group_size(fields), zeros_less_one=checkpoint_format == "gptq"
    )


def _awq(fields: Fields) -> WeightQuantization:
    bits = fields.integer("bits" if "bits" in fields else "w_bit")
    if bits != 4:
        raise fields.wrong("bits", "4")
    if "version" in fields and fields.string("version").lower() != "gemm":
        raise fields.wrong("version", "gemm")
    return WeightQuantization("awq", bits, _group_size(fields))


def _compressed_tensors(fields: Fields) -> WeightQuantization | None:
    """What the groups say of weights; what they say of activations does not matter here."""
    sparsity = Fields(fields.mapping("sparsity_config"), f"{_WHERE}: `sparsity_config`")
    if "format" in sparsity and sparsity.string("format") != "dense":
        raise sparsity.wrong("format", "dense")
    layouts = set()
    blocks = set()
    for name, group in fields.mapping("config_groups").items():
        where = f"{_WHERE}: `config_groups.{name}"
        if not isinstance(group, dict):
            raise ModelSourceError(f"{where}` is not an object")
        in_group = Fields(group, f"{where}`")
        source = in_group if "format" in in_group else fields
        stored_as = source.string("format")
        if stored_as not in _FORMATS:
            raise source.wrong("format", f"one of {', '.join(_FORMATS)}")
        weights = Fields(in_group.mapping("weights"), f"{where}.weights`")
        bits = weights.integer("num_bits")
        packed = stored_as == "pack-quantized"
        if bits != 8 and not (packed and bits == 4):
            raise weights.wrong("num_bits", "8, or 4 with the format pack-quantized")
        layouts.add("packed" if packed else "scaled")
        blocks.add(_block_shape(weights, "block_structure"))
    if not layouts:
        return None
    if len(layouts) > 1 or len(blocks) > 1:
        raise fields.wrong("config_groups", "the same format and block_structure in every group")
    [block] = blocks
    return WeightQuantization("packed" if "packed" in layouts else "scaled", block_shape=block)


def _group_size(fields: Fields) -> int | None:
    key = "group_size" if "group_size" in fields else "q_group_size"
    size = fields.integer(key, minimum=-1)
    if size == 0:
        raise fields.wrong(key, "-1 or at least 1")
    return None if size == -1 else size


def _block_shape(fields: Fields, key: str) -> tuple[int, int] | None:
    shape = fields.integers(key)
    if not shape:
        return None
    if len(shape) != 2 or min(shape) < 1:
        raise fields.wrong(key, "two positive integers")
    return shape[0], shape[1]
