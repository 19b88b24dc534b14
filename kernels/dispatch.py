"""One operation, several implementations, chosen by the device of a call's first tensor.

Every operation has a slow, obviously right `reference`, which runs on any device and which the
tests compare all others with. The environment variable `PAGELET_KERNELS` forces implementations
by name when the process starts: `reference` for every operation, or pairs such as
`paged_attention=reference,moe=torch_native`.
"""

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

REFERENCE = "reference"
_NAMES: Final[set[str]] = set()
"""Of the operations that were imported."""


class Op(Generic[P, R]):
    """A function whose implementations share one signature; its first argument is a tensor."""

    def __init__(
        self,
        name: str,
        reference: Callable[P, R],
        *,
        cpu: Mapping[str, Callable[P, R]] | None = None,
        cuda: Mapping[str, Callable[P, R]] | None = None,
    ) -> None:
        """`cpu` and `cuda` map names to implementations for that device, the preferred one first.

        Raises ValueError if `PAGELET_KERNELS` names an implementation that does not exist.
        """
        self.name = name
        _NAMES.add(name)
        self.implementations: dict[str, Callable[P, R]] = {
            REFERENCE: reference,
            **(cpu or {}),
            **(cuda or {}),
        }
        self._by_device = {
            device: next(iter(functions.values()))
            for device, functions in (("cpu", cpu), ("cuda", cuda))
            if functions
        }
        self._fallback = reference
        if forced := _forced(name, os.environ.get("PAGELET_KERNELS", "")):
            if forced not in self.implementations:
                raise ValueError(
                    f"PAGELET_KERNELS asks for {name}={forced}; {name} has: "
                    f"{', '.join(self.implementations)}"
                )
            self._by_device = {}
            self._fallback = self.implementations[forced]

    def chosen(self, device_type: str) -> str:
        """The name of the implementation that tensors on such a device get."""
        function = self._by_device.get(device_type, self._fallback)
        return next(name for name, known in self.implementations.items() if known is function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, torch.Tensor), f"{self.name}: pass the first tensor by position"
        return self._by_device.get(first.device.type, self._fallback)(*args, **kwargs)


def check_setting() -> None:
    """Raises ValueError if `PAGELET_KERNELS` names an operation that does not exist: it would be
    forced to nothing, and whoever set it would look for a fault in the wrong place."""
    asked = [op for op, _ in _forced_by_name(os.environ.get("PAGELET_KERNELS", "")) if op]
    if not asked:
        return
    import pagelet.kernels

    for folder in pkgutil.iter_modules(pagelet.kernels.__path__):
        if folder.ispkg:
            importlib.import_module(f"pagelet.kernels.{folder.name}")
    if unknown := [op for op in asked if op not in _NAMES]:
        raise ValueError(
            f"PAGELET_KERNELS names {', '.join(unknown)}, which is no operation; there are: "
            f"{', '.join(sorted(_NAMES))}"
        )


def _forced(op: str, setting: str) -> str | None:
    """The implementation that `PAGELET_KERNELS` names for an operation."""
    for target, implementation in _forced_by_name(setting):
        if target in (None, op):
            return implementation
    return None


def _forced_by_name(setting: str) -> Iterator[tuple[str | None, str]]:
    """Operations, or None for all of them, and the implementations that they are to have."""
    for item in filter(None, (part.strip() for part in setting.split(","))):
        target, separator, implementation = item.partition("=")
        if separator:
            yield target, implementation
        elif item == REFERENCE:
            yield None, REFERENCE
        else:
            raise ValueError(
                f"PAGELET_KERNELS: write {REFERENCE!r} or OP=IMPLEMENTATION, not {item!r}"
            )
