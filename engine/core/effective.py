"""The configuration in force: what was asked for, and what the engine made of the rest."""

from typing import Any

import msgspec

from pagelet.engine.core.core import EngineCore
from pagelet.protocol.config import EngineOptions


def effective_config(options: EngineOptions, core: EngineCore) -> dict[str, object]:
    """The options in builtin types, with the values that a loaded core has for those that were left
    to it, and `kernels`: which implementation runs, or why not the quickest."""
    info, num_blocks = core.executor.info, core.executor.num_blocks
    config: dict[str, Any] = msgspec.to_builtins(options)
    config["device"] = info.device
    config["model"]["dtype"] = info.dtype
    config["model"]["quantization"] = info.quantization
    config["model"]["max_model_len"] = core.max_model_len
    config["cache"]["kv_cache_dtype"] = info.kv_cache_dtype
    config["cache"]["num_blocks"] = num_blocks
    config["cache"]["kv_cache_memory_bytes"] = num_blocks * core.kv.layout.block_bytes
    config["scheduler"]["max_step_seconds"] = core.max_step_seconds
    config["kernels"] = info.kernels
    return config
