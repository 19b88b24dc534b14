"""A GPU that is not there, to see where a step would wait for it.

Tensors are fake ones on "cuda": they have shapes and no content, so that whatever needs a value on
the host (`item`, `tolist`, `nonzero`, a boolean index) raises. What copies between host and device
without being asynchronous, and from memory that is not pinned, is noticed here.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda", 0)
_ATEN = torch.ops.aten


class SyncWatch(TorchDispatchMode):
    """Collects the copies that a host would wait for. To be entered inside of `fake_gpu`."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._pinned: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _ATEN._pin_memory.default:
            self._pinned.append(args[0])
            return args[0]
        if func is _ATEN.is_pinned.default:
            return any(args[0] is tensor for tensor in self._pinned)
        result = func(*args, **kwargs)
        if func is _ATEN._to_copy.default:
            self._check(func, args[0], result, kwargs.get("non_blocking", False))
        elif func is _ATEN.copy_.default:
            self._check(func, args[1], args[0], args[2] if len(args) > 2 else False)
        return result

    def _check(
        self, func: Any, source: torch.Tensor, target: torch.Tensor, non_blocking: bool
    ) -> None:
        if source.device.type == target.device.type:
            return
        pinned = any(source is tensor for tensor in self._pinned)
        if not (non_blocking and pinned):
            self.waits.append(f"{func}: {source.device.type} to {target.device.type}")


def fake_gpu() -> FakeTensorMode:
    """The mode in which tensors may be on `GPU`."""
    return FakeTensorMode(allow_non_fake_inputs=True)
