"""A LoRA adapter's files, as PEFT writes them: `adapter_config.json` and safetensors. Torch-free.

They are checked where an adapter is named, so that the engine core may trust those that it loads.
"""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Final, Literal

import safetensors

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.weights.fields import Fields
from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LoraAdapter

_TENSOR: Final = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)
_REPEATS: Final = re.compile(r"[*+?{]")
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]")
_MOST_REPEATS: Final = 3
_MOST_CHOICES: Final = 8
_LONGEST_PATTERN: Final = 256
_MLP: Final = ("gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass(frozen=True)
class AdapterScaling:
    """What an adapter's products are multiplied with."""

    alpha: float
    alpha_pattern: dict[str, float]
    """Of modules that differ, by the end of their names (a regular expression)."""
    by_root: bool
    """Divided by the rank's square root in place of the rank (rsLoRA, arXiv 2312.03732)."""

    def factor(self, module: str, rank: int) -> float:
        """Of one module."""
        alpha = next(
            (
                alpha
                for pattern, alpha in self.alpha_pattern.items()
                if _ends_with(pattern).fullmatch(module)
            ),
            self.alpha,
        )
        return alpha / (rank**0.5 if self.by_root else rank)


def _ends_with(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({pattern})")


def _is_quick(pattern: str) -> bool:
    """Whether it is matched in a time that does not grow without bound: `(a+)+` and its like would
    hold the engine up for ever."""
    return (
        len(pattern) <= _LONGEST_PATTERN
        and len(_REPEATS.findall(pattern)) <= _MOST_REPEATS
        and pattern.count("|") <= _MOST_CHOICES
        and not _REPEATED_GROUP.search(pattern)
    )


def tensor_place(name: str) -> tuple[str, Literal["A", "B"]] | None:
    """The module that a stored tensor belongs to, such as `model.layers.0.self_attn.q_proj`, and
    which of its two matrices it is; None for anything else."""
    match = _TENSOR.fullmatch(name)
    return None if match is None else (match["module"], "A" if match["side"] == "A" else "B")


def read_scaling(folder: Path) -> AdapterScaling:
    """Raises ModelSourceError for a kind of adapter that is not supported."""
    path = folder / ADAPTER_CONFIG
    try:
        if path.exists() and not path.is_file():  # such as a pipe, which a read would wait for
            raise ModelSourceError(f"{path}: is not a file; give PEFT's folder")
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelSourceError(f"{path}: cannot be read: {error}; give PEFT's folder") from error
    if not isinstance(config, dict):
        raise ModelSourceError(f"{path}: holds no JSON object")
    fields = Fields({"lora_alpha": 8, "peft_type": "LORA"} | config, str(path))
    if fields.string("peft_type") != "LORA":
        raise fields.wrong("peft_type", "LORA")
    for name, neutral in (("use_dora", False), ("bias", "none"), ("modules_to_save", [])):
        if (given := config.get(name)) not in (None, neutral):
            raise ModelSourceError(
                f"{path}: `{name}` is {given!r}, which is not supported: train the adapter without"
            )
    patterns = Fields(fields.mapping("alpha_pattern"), f"{path}: `alpha_pattern`")
    alphas = {pattern: patterns.number(pattern) for pattern in patterns}
    for pattern in alphas:
        try:
            _ends_with(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ModelSourceError(
                f"{path}: `alpha_pattern` has {pattern!r}, which is no regular expression: {error}"
            ) from error
        if not _is_quick(pattern):
            raise ModelSourceError(
                f"{path}: `alpha_pattern` has {pattern[:80]!r}, which may take for ever to match: "
                f"name the modules, with {_MOST_REPEATS} of * + ? {{ and {_MOST_CHOICES} of | at "
                f"most, no group repeated, in {_LONGEST_PATTERN} characters"
            )
    by_root = bool(config.get("use_rslora"))
    return AdapterScaling(fields.number("lora_alpha"), alphas, by_root)


def read_adapter(name: str, folder: Path, config: ModelConfig, max_rank: int) -> LoraAdapter:
    """Checks an adapter's files against the model. Raises ModelSourceError that says what does not
    fit."""
    read_scaling(folder)
    path = folder / ADAPTER_WEIGHTS
    if not path.is_file():
        raise ModelSourceError(
            f"{folder}: has no {ADAPTER_WEIGHTS}; save the adapter as safetensors"
        )
    try:
        with safetensors.safe_open(path, framework="np") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelSourceError(f"{path}: damaged: {error}; copy it again") from error
    _check_shapes(path, shapes, config, max_rank)
    return LoraAdapter(name, str(folder.resolve()), _digest(folder))


def check_unchanged(adapter: LoraAdapter) -> None:
    """Raises ModelSourceError if its files are not those that were checked when it was named: they
    may not fit, and their products would be taken for those of the others."""
    try:
        same = _digest(Path(adapter.path)) == adapter.digest
    except OSError as error:
        raise ModelSourceError(f"{adapter.path}: cannot be read: {error}") from error
    if not same:
        raise ModelSourceError(f"{adapter.path}: its files have changed: load it again")


def _digest(folder: Path) -> str:
    digest = hashlib.sha256((folder / ADAPTER_CONFIG).read_bytes())
    with (folder / ADAPTER_WEIGHTS).open("rb") as weights:
        digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()


def _check_shapes(
    path: Path, shapes: dict[str, tuple[int, ...]], config: ModelConfig, max_rank: int
) -> None:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, shape in shapes.items():
        place = tensor_place(key)
        if place is None:
            raise ModelSourceError(f"{path}: {key} is no matrix of a LoRA adapter")
        found.setdefault(place[0], {})[place[1]] = shape
    if not found:
        raise ModelSourceError(f"{path}: has no tensors")
    for module, sides in found.items():
        expected = _module_shape(module, config)
        if expected is None:
            raise ModelSourceError(
                f"{path}: the target module {module} is none that can have an adapter here: "
                f"q_proj, k_proj, v_proj, o_proj and, in layers without experts, {', '.join(_MLP)} "
                f"of the {config.num_layers} layers can"
            )
        if sides.keys() != {"A", "B"} or not all(len(shape) == 2 for shape in sides.values()):
            raise ModelSourceError(f"{path}: {module} needs matrices lora_A and lora_B")
        (rank, in_size), (out_size, same_rank) = sides["A"], sides["B"]
        if rank > max_rank:
            raise ModelSourceError(
                f"{path}: {module} has rank {rank}, and {max_rank} is the largest here: start the "
                f"server with --max-lora-rank {rank}"
            )
        if (out_size, in_size) != expected or rank != same_rank or rank == 0:
            raise ModelSourceError(
                f"{path}: {module} is for a weight of {out_size} x {in_size}, but this model's is "
                f"{expected[0]} x {expected[1]}: the adapter was trained on another base model"
            )


def _module_shape(module: str, config: ModelConfig) -> tuple[int, int] | None:
    """[out_size, in_size] of a projection that may have an adapter, or None."""
    match = re.fullmatch(r"model\.layers\.(\d{1,5})\.(self_attn|mlp)\.(\w+)", module)
    if match is None or (layer := int(match[1])) >= config.num_layers:
        return None
    hidden, head_dim = config.hidden_size, config.head_dim
    if match[2] == "self_attn":
        return {
            "q_proj": (config.num_heads * head_dim, hidden),
            "k_proj": (config.num_kv_heads * head_dim, hidden),
            "v_proj": (config.num_kv_heads * head_dim, hidden),
            "o_proj": (hidden, config.num_heads * head_dim),
        }.get(match[3])
    if config.moe is not None and layer not in config.moe.dense_layers:
        return None
    size = config.intermediate_size
    return {
        "gate_proj": (size, hidden),
        "up_proj": (size, hidden),
        "down_proj": (hidden, size),
    }.get(match[3])


def adapter_modules(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """All projections that may have an adapter, and their [out_size, in_size]."""
    names = [
        f"model.layers.{layer}.{half}.{name}"
        for layer in range(config.num_layers)
        for half, names in (("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")), ("mlp", _MLP))
        for name in names
    ]
    shapes = {name: _module_shape(name, config) for name in names}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def largest_adapter_parameters(config: ModelConfig, rank: int) -> int:
    """Of an adapter of this rank on every projection that may have one."""
    return rank * sum(map(sum, adapter_modules(config).values()))
