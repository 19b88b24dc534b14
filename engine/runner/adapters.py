"""The adapters that a runner holds, and which rows of a step have which."""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import safetensors
import torch

from pagelet.engine.layers.lora import LoraBatch, LoraSite, LoraSlot
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.runner.inputs import StepInputs
from pagelet.engine.runner.state import RequestRows
from pagelet.engine.weights.adapter_config import check_unchanged, read_scaling, tensor_place
from pagelet.kernels.lora import LowRank
from pagelet.kernels.lora.adapters import Matrices
from pagelet.kernels.lora.cpu import pack_low_rank
from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.lora import ADAPTER_WEIGHTS, LoraAdapter


class Adapters:
    """Loads an adapter when a request has it first, and keeps the last used, as many as there are
    slots, which must be at least as many as a step can have."""

    def __init__(self, model: CausalLM, batch: LoraBatch) -> None:
        self._batch = batch
        placement = model.placement
        self._device, self._dtype = placement.device, placement.dtype
        self._is_packed = placement.packing is not None
        self._places: dict[str, LoraSlot] = {
            weight.name.removesuffix(".weight"): weight.lora
            for weight in model.weights()
            if weight.lora is not None
        }
        self._sites = {place.site: None for place in self._places.values()}
        self._slots: OrderedDict[str, int] = OrderedDict()
        """Of the adapters that are loaded, by digest, the last used at the end."""
        self._free = list(range(batch.num_slots))

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def in_use(self) -> bool:
        """Whether the step at hand has any."""
        return self._batch.in_use

    @contextlib.contextmanager
    def rehearsed(self) -> Iterator[None]:
        """Steps meanwhile take the memory, and compile the kernels, of ones whose tokens all have
        an adapter. There must be none yet, and none is added."""
        assert not self._slots
        self._batch.is_rehearsed = True
        try:
            yield
        finally:
            self._batch.is_rehearsed = False
            self._batch.begin([])

    def begin(self, inputs: StepInputs, rows: RequestRows) -> dict[int, str]:
        """Tells the layers which adapters a step has. Returns why requests cannot go on, by index
        in the batch: their adapters' files are gone or others by now."""
        if self._batch.is_rehearsed:
            self._batch.begin([(0, torch.arange(int(inputs.query_start[-1])))])
            return {}
        of_adapter: dict[str, tuple[LoraAdapter, list[int]]] = {}
        if rows.adapters:
            for index, row in enumerate(inputs.rows.tolist()):
                adapter = rows.adapters.get(row)
                if adapter is not None:
                    of_adapter.setdefault(adapter.digest, (adapter, []))[1].append(index)
        elif not self._batch.in_use:
            return {}
        assert len(of_adapter) <= self._batch.num_slots
        failed: dict[int, str] = {}
        groups = []
        for adapter, indices in of_adapter.values():
            try:
                slot = self._slot_of(adapter)
            except ModelSourceError as error:
                failed |= dict.fromkeys(indices, f"adapter {adapter.name!r}: {error}")
                continue
            starts, ends = inputs.query_start[:-1][indices], inputs.query_start[1:][indices]
            tokens = np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)])
            groups.append((slot, torch.from_numpy(tokens)))
        self._batch.begin(groups)
        return failed

    def _slot_of(self, adapter: LoraAdapter) -> int:
        """Raises ModelSourceError."""
        if adapter.digest not in self._slots:
            weights = self._read(adapter)
            if not self._free:
                _, unused = self._slots.popitem(last=False)
                for site in self._sites:
                    site.drop(unused)
                self._free.append(unused)
            slot = self._slots[adapter.digest] = self._free.pop()
            self._hold(slot, weights)
        self._slots.move_to_end(adapter.digest)
        return self._slots[adapter.digest]

    def _hold(self, slot: int, weights: dict[str, LowRank]) -> None:
        """Gives every site its part of an adapter, of which `weights` are the modules'."""
        of_modules: Mapping[str, Matrices] = weights
        if self._is_packed:
            packed = pack_low_rank(list(weights.values()), self._dtype)
            of_modules = dict(zip(weights, packed, strict=True))
        sites: dict[LoraSite, list[Matrices | None]] = {}
        for module, each in of_modules.items():
            place = self._places[module]
            sites.setdefault(place.site, [None] * place.site.num_parts)[place.part] = each
        for site, parts in sites.items():
            site.hold(slot, parts)

    def _read(self, adapter: LoraAdapter) -> dict[str, LowRank]:
        """This rank's share of it, by module. Raises ModelSourceError."""
        folder = Path(adapter.path)
        check_unchanged(adapter)
        scaling = read_scaling(folder)
        sides: dict[str, dict[str, torch.Tensor]] = {}
        try:
            with safetensors.safe_open(folder / ADAPTER_WEIGHTS, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    place = tensor_place(key)
                    if place is not None and place[0] in self._places:
                        sides.setdefault(place[0], {})[place[1]] = file.get_tensor(key)
        except (safetensors.SafetensorError, OSError) as error:
            raise ModelSourceError(
                f"{folder / ADAPTER_WEIGHTS}: cannot be read: {error}"
            ) from error
        weights = {}
        for module, pair in sides.items():
            place_of = self._places[module]
            a, b = place_of.share_a(pair["A"]), place_of.share_b(pair["B"])
            scaled = b.double() * scaling.factor(module, len(a))
            weights[module] = LowRank(self._place(a), self._place(scaled))
        return weights

    def _place(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.to(self._device, self._dtype).contiguous()
