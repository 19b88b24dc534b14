"""Which device and which dtype the model runs in, and how a step's numbers get there."""

from typing import Any

import numpy.typing as npt
import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.kernels.gpu.architectures import of_device
from pagelet.protocol.config import ModelOptions

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")


def choose_device(asked: str, rank: int = 0) -> torch.device:
    """The device of the rank of this number on the machine. `auto` is a GPU where there is one.
    Raises `ConfigurationError` if the asked-for one is not there."""
    num_gpus = torch.cuda.device_count()
    if asked == "cpu" or (asked == "auto" and num_gpus == 0):
        return torch.device("cpu")
    if num_gpus <= rank:
        raise ConfigurationError(
            f"rank {rank} needs a GPU of its own but torch sees {num_gpus}: lower "
            f"--tensor-parallel-size x --pipeline-parallel-size to {num_gpus}"
            if num_gpus
            else "torch sees no CUDA device: check the driver, or give --device cpu"
        )
    return torch.device("cuda", rank)


def check_kernels_run(device: torch.device) -> None:
    """Raises `ConfigurationError` for a GPU that kernels cannot be compiled for."""
    if device.type == "cuda":
        try:
            of_device(device)
        except RuntimeError as error:
            raise ConfigurationError(f"{error}; take another GPU, or --device cpu") from error


def choose_dtype(options: ModelOptions, checkpoint_dtype: str, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations. `auto` is the checkpoint's, but on a CPU float32
    unless that is bfloat16 and the processor computes in it: torch's float16 there is slow."""
    if options.dtype != "auto":
        return _DTYPES[options.dtype]
    dtype = _DTYPES[checkpoint_dtype]
    if device.type == "cpu" and dtype is torch.float16:
        return torch.float32
    if device.type == "cpu" and dtype is torch.bfloat16 and not has_bf16_instructions():
        return torch.float32
    return dtype


def has_bf16_instructions() -> bool:
    """Whether this CPU multiplies bfloat16 (AVX-512 BF16, AMX, or Arm's BF16)."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in _BF16_INSTRUCTIONS)


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A tensor of the array's content; on a CPU without a copy. A GPU copies it while the host goes
    on, which only memory that the driver has pinned allows."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
