"""GPU memory that is in use and not ours: what a process that was killed left behind, or another
program's. Free of torch: the driver's library tells.

The driver counts all that is in use, and inside a container names nobody. So the engine core reads
it before its ranks touch the GPU, when all of it is others', and again when they are loaded: what
was added is theirs. From then on a change that is more than a step may need is others' again.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from pagelet.protocol.config import EngineOptions

_SECONDS: Final = 5.0
_SUFFIX: Final = ".gpus"

_log = logging.getLogger(__name__)

ByGpu = dict[str, int]
"""Bytes of each GPU, by its UUID."""


def read_in_use(options: EngineOptions, environment: Mapping[str, str]) -> ByGpu:
    """What is in use of the GPUs that an engine core with this environment takes on this machine.
    Empty where it takes none, and where no driver of NVIDIA's tells."""
    if options.device == "cpu" or options.runner == "simulated":
        return {}
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        visible = _visible(pynvml, environment.get("CUDA_VISIBLE_DEVICES"))
        ranks = options.parallel.num_ranks // options.parallel.nnodes
        return {_uuid(pynvml, handle): _in_use(pynvml, handle) for handle in visible[:ranks]}
    except pynvml.NVMLError as error:
        _log.debug("the driver does not tell what is in use: %s", error)
        return {}
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _visible(nvml: Any, chosen: str | None) -> list[Any]:
    """GPUs as CUDA sees them: numbers, or beginnings of UUIDs, up to the first that is neither."""
    every = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if chosen is None:
        return every
    handles = []
    for name in (part.strip() for part in chosen.split(",")):
        if name.startswith("MIG-"):
            handles.append(nvml.nvmlDeviceGetHandleByUUID(name))
        elif name.isdecimal() and int(name) < len(every):
            handles.append(every[int(name)])
        elif name.startswith("GPU-"):
            handles += [handle for handle in every if _uuid(nvml, handle).startswith(name)][:1]
        else:
            break
    return handles


def _uuid(nvml: Any, handle: Any) -> str:
    return str(nvml.nvmlDeviceGetUUID(handle))


def _in_use(nvml: Any, handle: Any) -> int:
    try:  # the first version counts what the driver keeps for itself
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.used)


class ForeignMemory:
    """Measures it for one engine core, and writes it to a file beside the core's heartbeat, for
    whoever serves metrics. Close it in the end."""

    def __init__(self, heartbeat_path: str, read: Callable[[], ByGpu]) -> None:
        """`read` tells what is in use; nothing of that may be this core's yet."""
        self._path = heartbeat_path + _SUFFIX
        self._read = read
        self._before = read()
        self._loaded: ByGpu | None = None
        self._reserve = 0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._write(self._before)

    def loaded(self, *, held: int, reserve: int) -> None:
        """The core's ranks hold what they need, `held` bytes of each GPU at least, and may take up
        to `reserve` bytes more in a step. From now on a thread measures every few seconds."""
        self._loaded, self._reserve = self._read(), reserve
        # What a core before this one held may have been freed only after this one had begun.
        self._before = {
            gpu: min(self._before.get(gpu, 0), max(0, used - held))
            for gpu, used in self._loaded.items()
        }
        if self._loaded:
            self._thread = threading.Thread(target=self._watch, name="gpu-memory", daemon=True)
            self._thread.start()

    def measure(self) -> ByGpu:
        """Bytes that are others', at least: what a step may need is not counted where it grew."""
        if self._loaded is None:
            return self._before
        return {
            gpu: max(0, self._before[gpu] + self._growth(used - self._loaded[gpu]))
            for gpu, used in self._read().items()
            if gpu in self._loaded
        }

    def _growth(self, change: int) -> int:
        return change if change < 0 else max(0, change - self._reserve)

    def _watch(self) -> None:
        while not self._closed.wait(_SECONDS):
            self._write(self.measure())

    def _write(self, by_gpu: ByGpu) -> None:
        if not by_gpu:
            return
        written = Path(f"{self._path}.new")
        written.write_bytes(msgspec.json.encode(by_gpu))
        os.replace(written, self._path)

    def close(self) -> None:
        """Ends the thread; the file stays, with what was measured last."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()


def read_foreign_memory(heartbeat_path: str) -> ByGpu:
    """What the core of that heartbeat measured last; empty without GPUs, and before that."""
    try:
        return msgspec.json.decode(Path(heartbeat_path + _SUFFIX).read_bytes(), type=ByGpu)
    except FileNotFoundError:
        return {}
