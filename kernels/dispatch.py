"""One operation, several implementations, chosen by the device of a call's first tensor.

Every operation has a slow, obviously right `reference`, which runs on any device and which the
tests compare all others with. The environment variable `PAGELET_KERNELS` forces implementations
by name when the process starts: `reference` for every operation, or pairs such as
`paged_attention=reference,moe=torch_native`.
"""

import os
from collections.abc import Callable, Mapping
from typing import Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

REFERENCE = "reference"


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

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, torch.Tensor), f"{self.name}: pass the first tensor by position"
        return self._by_device.get(first.device.type, self._fallback)(*args, **kwargs)


def _forced(op: str, setting: str) -> str | None:
    """The implementation that `PAGELET_KERNELS` names for an operation."""
    for item in filter(None, (part.strip() for part in setting.split(","))):
        target, separator, implementation = item.partition("=")
        if not separator:
            if item != REFERENCE:
                raise ValueError(
                    f"PAGELET_KERNELS: write {REFERENCE!r} or OP=IMPLEMENTATION, not {item!r}"
                )
            return REFERENCE
        if target == op:
            return implementation
    return None
