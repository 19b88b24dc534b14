"""The KV cache's memory: in which dtype, and which tensor holds a layer's pages."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.kv.spec import KVLayout, make_layout
from pagelet.engine.layers.context import KVBinding
from pagelet.engine.layers.tensor_parallel import kv_heads_per_rank
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.device import to_device
from pagelet.kernels.cpu.memory import empty_bytes
from pagelet.kernels.paged_attention import paged_attention
from pagelet.kernels.paged_attention.pages import token_size
from pagelet.kernels.rotary import rotary_kv_write
from pagelet.protocol.config import KVCacheDType

_DTYPES: dict[KVCacheDType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
_OF_CPU_LIBRARY = ("float32", "bfloat16", "int8")
_CONVERTING = ("triton", "reference")
"""Implementations of attention and of the KV write that take pages of every type."""


def choose_kv_dtype(
    asked: KVCacheDType, dtype: torch.dtype, device: torch.device, *, recorded: bool
) -> torch.dtype:
    """`dtype` is that of activations; `recorded` says that the CPU library runs the model. Raises
    `ConfigurationError`."""
    if asked == "auto":
        return dtype
    if recorded and asked not in _OF_CPU_LIBRARY:
        raise ConfigurationError(
            f"--kv-cache-dtype {asked} is for a GPU: on a CPU give {', '.join(_OF_CPU_LIBRARY)}, "
            "or leave --kv-cache-dtype out"
        )
    if recorded or all(
        op.chosen(device.type) in _CONVERTING for op in (paged_attention, rotary_kv_write)
    ):
        return _DTYPES[asked]
    raise ConfigurationError(
        f"--kv-cache-dtype {asked} needs the CPU library or Triton's kernels, and torch's "
        "operations run this model here; leave --kv-cache-dtype out"
    )


def kv_dtype_name(dtype: torch.dtype) -> str:
    """As --kv-cache-dtype has it."""
    names: dict[torch.dtype, str] = {known: name for name, known in _DTYPES.items()}
    return names.get(dtype, str(dtype).removeprefix("torch."))


@dataclasses.dataclass(frozen=True)
class PageShape:
    """A block's keys, or its values, of one layer on one rank."""

    num_heads: int
    block_size: int
    token_size: int
    """Elements of one head's key, with its scale if the dtype needs one."""
    dtype: torch.dtype

    @classmethod
    def of(
        cls, config: ModelConfig, block_size: int, dtype: torch.dtype, tp_size: int = 1
    ) -> "PageShape":
        """A model's, in a cache of `dtype`."""
        heads = kv_heads_per_rank(config.num_kv_heads, tp_size)
        return cls(heads, block_size, token_size(config.head_dim, dtype), dtype)

    @property
    def num_bytes(self) -> int:
        """Of a page: a block's keys and its values."""
        return 2 * math.prod(self.dims) * self.dtype.itemsize

    @property
    def dims(self) -> tuple[int, int, int]:
        """[num_heads, block_size, token_size]."""
        return self.num_heads, self.block_size, self.token_size

    def allocate(
        self, layout: KVLayout, layers: range, num_blocks: int, device: torch.device
    ) -> dict[int, KVBinding]:
        """The pages of each of `layers`. Not zeroed, so that on a CPU they take memory when they
        are used."""
        dims = (2, num_blocks, *self.dims)
        slots = [
            empty_bytes(num_blocks * self.num_bytes).view(self.dtype).view(dims)
            if device.type == "cpu"
            else torch.empty(dims, dtype=self.dtype, device=device)
            for _ in range(layout.num_slots)
        ]
        places = {layer: layout.place(layer) for layer in layers}
        return {layer: KVBinding(slots[slot], group) for layer, (group, slot) in places.items()}


class PageCopier:
    """Copies whole blocks of a cache, on this rank."""

    def __init__(self, kv: Mapping[int, KVBinding]) -> None:
        # Layers of several groups share a tensor, each block being one group's. As bytes, since
        # not every type can be indexed on every device.
        caches = {id(binding.cache): binding.cache for binding in kv.values()}
        self._slots = [cache.view(torch.uint8) for cache in caches.values()]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Of each pair the first block's pages to the second one's. All are read before any is
        written."""
        if len(pairs) == 1:
            [(source, target)] = pairs
            for cache in self._slots:
                cache[:, target].copy_(cache[:, source])
            return
        sources, targets = to_device(np.array(pairs).T, self._slots[0].device)
        for cache in self._slots:
            cache.index_copy_(1, targets, cache.index_select(1, sources))


def kv_layout(config: ModelConfig, shape: PageShape) -> KVLayout:
    """How a model's layers share pages."""
    windows = [config.window(layer) for layer in range(config.num_layers)]
    return make_layout(windows, shape.num_bytes)
