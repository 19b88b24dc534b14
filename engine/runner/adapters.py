"""The adapters that a runner holds, and which rows of a step have which."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import safetensors
import torch

from pagelet.engine.layers.lora import LoraBatch, LoraSite, LoraSlot, LowRank
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.runner.device import to_device
from pagelet.engine.runner.inputs import StepInputs
from pagelet.engine.runner.state import RequestRows
from pagelet.engine.weights.adapter_config import (
    WEIGHTS,
    check_unchanged,
    read_scaling,
    tensor_place,
)
from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.lora import LoraAdapter

_Weights = dict[LoraSite, list[LowRank | None]]


class Adapters:
    """Loads an adapter when a request has it first, and keeps the `capacity` last used, which must
    be at least as many as a step can have."""

    def __init__(self, model: CausalLM, batch: LoraBatch, capacity: int) -> None:
        self._batch = batch
        self._capacity = capacity
        self._device, self._dtype = model.placement.device, model.placement.dtype
        self._slots: dict[str, LoraSlot] = {
            weight.name.removesuffix(".weight"): weight.lora
            for weight in model.weights()
            if weight.lora is not None
        }
        self._loaded: OrderedDict[str, _Weights] = OrderedDict()

    def __len__(self) -> int:
        return len(self._loaded)

    @property
    def in_use(self) -> bool:
        """Whether the step at hand has any."""
        return bool(self._batch.groups)

    def begin(self, inputs: StepInputs, rows: RequestRows) -> dict[int, str]:
        """Tells the layers which adapters a step has. Returns why requests cannot go on, by index
        in the batch: their adapters' files are gone or others by now."""
        self._batch.groups.clear()
        if not rows.adapters:
            return {}
        of_adapter: dict[str, tuple[LoraAdapter, list[int]]] = {}
        for index, row in enumerate(inputs.rows.tolist()):
            adapter = rows.adapters.get(row)
            if adapter is not None:
                of_adapter.setdefault(adapter.digest, (adapter, []))[1].append(index)
        failed: dict[int, str] = {}
        for adapter, indices in of_adapter.values():
            try:
                weights = self._get(adapter)
            except ModelSourceError as error:
                failed |= dict.fromkeys(indices, f"adapter {adapter.name!r}: {error}")
                continue
            starts, ends = inputs.query_start[:-1][indices], inputs.query_start[1:][indices]
            tokens = np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)])
            self._batch.groups.append((weights, to_device(tokens, self._device)))
        return failed

    def _get(self, adapter: LoraAdapter) -> _Weights:
        if adapter.digest not in self._loaded:
            self._loaded[adapter.digest] = self._load(adapter)
            if len(self._loaded) > self._capacity:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(adapter.digest)
        return self._loaded[adapter.digest]

    def _load(self, adapter: LoraAdapter) -> _Weights:
        """This rank's share of it. Raises ModelSourceError."""
        folder = Path(adapter.path)
        check_unchanged(adapter)
        scaling = read_scaling(folder)
        sides: dict[str, dict[str, torch.Tensor]] = {}
        try:
            with safetensors.safe_open(folder / WEIGHTS, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    place = tensor_place(key)
                    if place is not None and place[0] in self._slots:
                        sides.setdefault(place[0], {})[place[1]] = file.get_tensor(key)
        except (safetensors.SafetensorError, OSError) as error:
            raise ModelSourceError(f"{folder / WEIGHTS}: cannot be read: {error}") from error
        weights: _Weights = {}
        for module, pair in sides.items():
            slot = self._slots[module]
            a, b = slot.share_a(pair["A"]), slot.share_b(pair["B"])
            scaled = b.double() * scaling.factor(module, len(a))
            parts = weights.setdefault(slot.site, [None] * slot.site.num_parts)
            parts[slot.part] = LowRank(self._place(a), self._place(scaled))
        return weights

    def _place(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.to(self._device, self._dtype).contiguous()
