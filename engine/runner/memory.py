"""The memory budget: how many KV blocks fit beside the weights and the largest step."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from typing import NoReturn

import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.kv.spec import KVLayout
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.step import MAX_DRAFT_TOKENS
from pagelet.engine.weights.adapter_config import largest_adapter_parameters
from pagelet.process.host_memory import read_host_memory
from pagelet.protocol.config import CacheOptions, CpuOptions, EngineOptions, LoraOptions
from pagelet.protocol.sizes import format_at_least, format_at_most, format_bytes

_DEFAULT_UTILIZATION = {"cpu": 0.4, "cuda": 0.9}
_CPU_DEFAULT_KV_BYTES = 4 << 30
"""On a machine shared with others the default KV cache stops here, unless one request of the
longest length needs more."""
_CONTEXT_BYTES = 1 << 30
"""More than a process takes on a GPU for itself (context, libraries, compiled kernels), which it
cannot tell from others' use where the driver names no processes, as in a container."""
_RESERVE = {"cpu": 0, "cuda": 256 << 20}
"""What is left free even where another process has the rest: libraries load kernels and take
workspaces after the largest step was measured, and the allocator rounds each layer's pages up."""
_SAMPLING_BYTES = 32
"""A logit's share of the widest moment in sampling: logits in two precisions, weights, prefix sums
and one filter's copy."""
_ATTENTION_GATHER_ELEMENTS = 1 << 26
"""Keys and values that attention gathers at once, together."""


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """One device's memory once the weights are loaded, in bytes."""

    total: int
    free: int
    own: int
    """Used by this process: the weights, and on a GPU the state rows."""
    others: str = ""
    """Who else uses it, in words for an error message."""
    remedy: str = "Free memory"
    """What makes more of it free, in words for an error message."""


def read_device_memory(device: torch.device, weight_bytes: int, cpu: CpuOptions) -> DeviceMemory:
    """What a device has now. `weight_bytes` is what this process holds there."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        own = max(weight_bytes, torch.cuda.memory_allocated(device))
        return DeviceMemory(total, free, own, _gpu_users(device, total - free - own))
    host = read_host_memory()
    memory = DeviceMemory(host.total, host.available, weight_bytes)
    if cpu.memory_bytes is not None:
        return _limit(memory, cpu.memory_bytes, "--cpu-memory")
    if cpu.share == 1:
        return memory
    return _limit(memory, math.floor(host.total * cpu.share), "--cpu-share")


def _limit(memory: DeviceMemory, most: int, option: str) -> DeviceMemory:
    """As if the device had no more than `most` bytes, which `option` says."""
    total = min(memory.total, most)
    left = max(0, total - memory.own)
    if left >= memory.free:
        return dataclasses.replace(memory, total=total)
    return dataclasses.replace(memory, total=total, free=left, remedy=f"Raise {option}")


def activation_bytes(
    config: ModelConfig, options: EngineOptions, max_model_len: int, dtype: torch.dtype
) -> int:
    """An upper bound of what the largest step needs beside weights and KV cache: that of its
    widest layer, or of sampling for `max_num_seqs` requests.

    A formula, for where the step itself is not run (see `worst_step`).
    """
    rows = options.scheduler.max_num_seqs + MAX_DRAFT_TOKENS
    sampling = rows * config.vocab_size * _SAMPLING_BYTES
    tokens = options.scheduler.max_num_batched_tokens
    return max(layer_bytes(config, tokens, max_model_len, dtype), sampling)


def layer_bytes(config: ModelConfig, tokens: int, max_model_len: int, dtype: torch.dtype) -> int:
    """An upper bound of what the layers need for a step of so many tokens: the tensors alive at a
    layer's widest point (residual stream, projections before and after rotation, MLP), and what
    attention gathers."""
    attention = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    if config.moe is None:
        mlp = 3 * config.intermediate_size
    else:
        sizes = config.moe.intermediate_size, config.hidden_size
        expert = 2 * sizes[0] + sizes[1] + max(sizes)
        mlp = max(3 * config.intermediate_size, config.moe.num_experts_per_token * expert)
    widest = 4 * config.hidden_size + 2 * attention + mlp
    gathered = max(
        _ATTENTION_GATHER_ELEMENTS, 2 * config.num_kv_heads * config.head_dim * max_model_len
    )
    mask = tokens * max_model_len
    if config.attention_logit_softcap is not None:  # scores are written out
        mask += 2 * 4 * config.num_heads * tokens * max_model_len
    return tokens * widest * max(dtype.itemsize, 4) + gathered * dtype.itemsize + mask


def adapter_bytes(config: ModelConfig, options: LoraOptions, dtype: torch.dtype) -> int:
    """An upper bound of what LoRA adapters take, if there may be any."""
    if not options.enabled:
        return 0
    # The CPU library has vectors of 16 ranks.
    largest = largest_adapter_parameters(config, -(-options.max_rank // 16) * 16)
    return options.max_cpu_loras * largest * dtype.itemsize


@dataclasses.dataclass(frozen=True)
class OtherNeeds:
    """What needs memory beside weights and KV cache, in bytes."""

    activations: int
    """Of the largest step."""
    adapters: int = 0
    """Of as many LoRA adapters as may be in memory."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.activations + self.adapters

    @property
    def of_adapters(self) -> str:
        """In words for an error message, which go on with the largest step's."""
        return f", the adapters {format_bytes(self.adapters)}" if self.adapters else ""

    @property
    def remedy(self) -> str:
        """What makes the larger of the two smaller, in words for an error message."""
        if self.adapters > self.activations:
            return "--max-cpu-loras or --max-lora-rank"
        return "--max-num-batched-tokens or --max-num-seqs"


def count_blocks(
    options: CacheOptions,
    memory: DeviceMemory,
    needs: OtherNeeds,
    layout: KVLayout,
    max_model_len: int,
    device_type: str,
) -> int:
    """The blocks that fit, the null block included.

    Raises `ConfigurationError` if the asked-for size does not fit, or if nothing is left.
    """
    if options.num_blocks is not None:
        return options.num_blocks
    reserve = _RESERVE[device_type]
    room = memory.free - needs.total - reserve
    # Every group of one longest request in full, and the null block.
    longest = len(layout.groups) * math.ceil(max_model_len / options.block_size) + 1
    asked = options.kv_cache_memory_bytes
    if asked is not None:
        if asked > room:
            if room < 2 * layout.block_bytes:  # no size fits
                _raise_no_room(options, memory, needs, layout, room, room, device_type)
            kept = f", libraries {format_bytes(reserve)}" if reserve else ""
            # A smaller step, or fewer adapters, give back a part only.
            enough = asked - room <= max(needs.activations, needs.adapters) // 2
            raise ConfigurationError(
                f"a KV cache of {format_bytes(asked)} does not fit: {format_bytes(memory.free)} "
                f"are free once the weights are loaded{memory.others}, and of them the largest "
                f"step needs {format_bytes(needs.activations)}{needs.of_adapters}{kept}. Lower "
                f"--kv-cache-memory to {format_at_most(room)} or less"
                f"{f', or lower {needs.remedy}' if enough else ''}"
            )
        budget = asked
    else:
        share = options.memory_utilization or _DEFAULT_UTILIZATION[device_type]
        budget = min(math.floor(memory.total * share) - memory.own - needs.total, room)
        if options.memory_utilization is None and device_type == "cpu":
            budget = min(budget, max(_CPU_DEFAULT_KV_BYTES, longest * layout.block_bytes))
    num_blocks = budget // layout.block_bytes
    if num_blocks < 2 and asked is not None:
        raise ConfigurationError(
            f"a KV cache of {format_bytes(asked)} holds no tokens: one request of max_model_len "
            f"{max_model_len} tokens needs {format_bytes(longest * layout.block_bytes)}. Give "
            f"--kv-cache-memory {longest * layout.block_bytes}, or lower --max-model-len"
        )
    if num_blocks < 2:  # the null block holds no tokens
        _raise_no_room(options, memory, needs, layout, budget, room, device_type)
    return num_blocks


def _raise_no_room(
    options: CacheOptions,
    memory: DeviceMemory,
    needs: OtherNeeds,
    layout: KVLayout,
    budget: int,
    room: int,
    device_type: str,
) -> NoReturn:
    missing = 2 * layout.block_bytes - budget
    text = (
        f"no memory is left for the KV cache: {format_bytes(memory.total)} in all, "
        f"{format_bytes(memory.free)} of them free{memory.others}; weights take "
        f"{format_bytes(memory.own)}, the largest step "
        f"{format_bytes(needs.activations)}{needs.of_adapters}, and one block "
        f"{format_bytes(layout.block_bytes)}; {format_at_least(missing)} are missing. "
    )
    share = options.memory_utilization or _DEFAULT_UTILIZATION[device_type]
    if room >= 2 * layout.block_bytes:
        needed = math.ceil(100 * (share + missing / memory.total)) / 100
        raise ConfigurationError(f"{text}Raise --memory-utilization from {share} to {needed}")
    raise ConfigurationError(
        f"{text}{memory.remedy}, lower {needs.remedy}, or take a smaller model or dtype"
    )


@contextlib.contextmanager
def out_of_memory_named(device: torch.device, what: str, advice: str) -> Iterator[None]:
    """Turns a GPU's lack of memory into a `ConfigurationError`: for what it was needed, who else
    has it, and what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_allocated(device)
        raise ConfigurationError(
            f"{what} did not fit on {device}: {format_bytes(total)} in all, {format_bytes(own)} "
            f"used by this process and {format_bytes(free)} free"
            f"{_gpu_users(device, total - free - own)}. {advice}"
        ) from error


def _gpu_users(device: torch.device, elsewhere: int) -> str:
    """Other processes on a GPU, as far as the driver tells; `elsewhere` are the bytes in use that
    this process has not allocated."""
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        processes = []
    users = [
        f"process {process.pid}"
        + ("" if process.usedGpuMemory is None else f" {format_bytes(process.usedGpuMemory)}")
        for process in processes
        if process.pid != os.getpid()
    ]
    if users:
        return f" (in use by others: {', '.join(users)})"
    if elsewhere > _CONTEXT_BYTES:
        about = format_bytes(elsewhere)
        return f" (in use by others, whom the driver does not name here: about {about})"
    return ""
