"""The forward pass on the CPU library: recorded at load, replayed every step."""

import os

import torch

from pagelet.engine.layers.context import AttentionMetadata, KVBinding
from pagelet.engine.layers.recording import Recorder
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.kernels.cpu.library import status
from pagelet.kernels.linear.packed import LinearFormat
from pagelet.kernels.paged_attention.cpu import unsupported
from pagelet.protocol.config import Quantization

_FLOAT_FORMATS: dict[torch.dtype, LinearFormat] = {torch.float32: "f32", torch.bfloat16: "bf16"}


def why_not_recorded(
    device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int
) -> str | None:
    """Why the model has to run on torch's operations; None if the CPU library can run it."""
    if device.type != "cpu":
        return f"the model is on {device}"
    if os.environ.get("PAGELET_KERNELS"):
        return "PAGELET_KERNELS chooses other implementations"
    return status().reason or unsupported(head_dim, block_size, dtype)


def linear_formats(
    quantization: Quantization, dtype: torch.dtype
) -> tuple[LinearFormat, LinearFormat]:
    """Formats of the layers' weights and of the head's, which 4 bits would harm most."""
    if quantization == "int8":
        return "q8", "q8"
    if quantization == "int4":
        return "q4", "q8"
    return _FLOAT_FORMATS[dtype], _FLOAT_FORMATS[dtype]


class CpuForward:
    """Takes the place of `CausalLM.forward`."""

    def __init__(
        self,
        model: CausalLM,
        kv: list[KVBinding],
        quantization: Quantization,
        *,
        max_tokens: int,
        max_requests: int,
        max_model_len: int,
    ) -> None:
        layers, head = linear_formats(quantization, model.placement.dtype)
        self._recorder = Recorder(
            dtype=model.placement.dtype,
            linear_format=layers,
            max_tokens=max_tokens,
            max_requests=max_requests,
            max_model_len=max_model_len,
            kv=kv,
        )
        self._hidden = model.record(self._recorder, head)

    def __call__(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: list[AttentionMetadata],
    ) -> torch.Tensor:
        """Final hidden states [num_tokens, hidden_size], valid until the next call."""
        self._recorder.load(input_ids, positions, attention)
        num_tokens = len(input_ids)
        self._recorder.replay(num_tokens, len(attention[0].seq_lens_cpu))
        return self._hidden[:num_tokens]
