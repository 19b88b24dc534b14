"""How the layers of a model share the pages of the KV cache.

A block id stands for one page in each of the cache's `num_slots` tensors. Layers with the same
attention form groups of at most `num_slots` layers, the i-th layer of a group using tensor i, and
every group has a block table of its own, all over one pool of block ids. So a sliding-window
group gives its old pages back for full-attention layers to use, and no memory is divided in
advance (the scheme of vLLM's hybrid KV cache manager and of Jenga, arXiv 2503.18292).
"""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class KVGroup:
    """Layers that share one block table."""

    layers: tuple[int, ...]
    sliding_window: int | None


@dataclasses.dataclass(frozen=True)
class KVLayout:
    """Groups of a model, and the size of a page."""

    groups: tuple[KVGroup, ...]
    num_slots: int
    """Tensors of pages; at least the size of the largest group."""
    page_bytes: int
    """2 x block_size x num_kv_heads x head_dim x bytes of an element."""
    draft_bytes: int = 0
    """A draft model's pages of one block."""

    @property
    def block_bytes(self) -> int:
        """Memory that one block id stands for."""
        return self.num_slots * self.page_bytes + self.draft_bytes

    def place(self, layer: int) -> tuple[int, int]:
        """The group and the tensor of a layer."""
        for index, group in enumerate(self.groups):
            if layer in group.layers:
                return index, group.layers.index(layer)
        raise KeyError(layer)


def stage_layout(layout: KVLayout, layers: range) -> KVLayout:
    """Of a pipeline stage that has only these layers: the same groups, hence the same block
    tables, with the stage's own layers spread evenly over the groups of each window."""
    if all(layer in layers for group in layout.groups for layer in group.layers):
        return layout
    groups = list(layout.groups)
    for window in {group.sliding_window for group in groups}:
        alike = [index for index, group in enumerate(groups) if group.sliding_window == window]
        own = [layer for index in alike for layer in groups[index].layers if layer in layers]
        for order, index in enumerate(alike):
            groups[index] = KVGroup(tuple(own[order :: len(alike)]), window)
    num_slots = max(len(group.layers) for group in groups)
    return KVLayout(tuple(groups), num_slots, layout.page_bytes)


def make_layout(windows: Sequence[int | None], page_bytes: int) -> KVLayout:
    """Groups layers by their attention window (None for full attention).

    The size of a group is the smallest number of layers of any one kind, so that padding is
    small: Gemma 3's 5 sliding layers for each full one become 5 sliding groups and 1 full group.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in kinds.values())
    if max(len(layers) for layers in kinds.values()) < 1.25 * size:
        size = max(len(layers) for layers in kinds.values())
    groups = [
        KVGroup(tuple(layers[start : start + size]), window)
        for window, layers in kinds.items()
        for start in range(0, len(layers), size)
    ]
    groups.sort(key=lambda group: group.sliding_window is not None)
    return KVLayout(tuple(groups), size, page_bytes)
