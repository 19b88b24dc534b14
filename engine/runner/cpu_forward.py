"""The forward pass on the CPU library: recorded at load, replayed every step."""

import math
import os
from collections.abc import Callable, Collection, Mapping

import torch

from pagelet.engine.layers.context import AttentionMetadata, KVBinding
from pagelet.engine.layers.placement import Packing
from pagelet.engine.layers.recording import Recorder
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.runner.plain_decode import PlainDecode
from pagelet.engine.runner.state import RequestRows
from pagelet.kernels.cpu.cores import usable_cores
from pagelet.kernels.cpu.library import library, needs_compiling, status
from pagelet.kernels.linear.packed import LinearFormat
from pagelet.kernels.paged_attention.cpu import unsupported
from pagelet.protocol.config import CpuOptions, Quantization

_FLOAT_FORMATS: dict[torch.dtype, LinearFormat] = {torch.float32: "f32", torch.bfloat16: "bf16"}
QUANTIZED_FORMATS = frozenset({"q8", "q4", "int4", "int8", "fp8"})
"""Of the CPU library, and on a GPU."""


def why_not_recorded(
    device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int
) -> str | None:
    """Why the model has to run on torch's operations; None if the CPU library can run it."""
    if device.type != "cpu":
        return f"the model is on {device}"
    if os.environ.get("PAGELET_KERNELS"):
        return "PAGELET_KERNELS chooses other implementations"
    if dtype not in _FLOAT_FORMATS:
        name = str(dtype).removeprefix("torch.")
        return f"the CPU library computes in float32 and bfloat16, and --dtype is {name}"
    return status().reason or unsupported(head_dim, block_size, dtype)


def compile_kernels(device: torch.device, stage: Callable[[str], None]) -> None:
    """Has the CPU library compiled, if it will be asked for and is not there: it takes a minute on
    a busy machine, so `stage` is told."""
    if device.type == "cpu" and not os.environ.get("PAGELET_KERNELS") and needs_compiling():
        stage("compiling the CPU kernels (first start only)")
        status()


def limit_threads(options: CpuOptions, num_ranks: int, device: torch.device) -> None:
    """Has torch and the CPU library compute with no more threads than asked for, which the ranks
    share. Does nothing where all cores may be used."""
    if device.type != "cpu" or (options.threads is None and options.share == 1):
        return
    threads = options.threads or math.floor(usable_cores() * options.share)
    threads = max(1, threads // num_ranks)
    torch.set_num_threads(threads)
    if not needs_compiling() and status().reason is None:
        library().set_threads(threads)


def describe_kernels(formats: Collection[str], reason: str | None, device: torch.device) -> str:
    """What computes the forward pass, in words: the CPU library on linear weights of these formats,
    or torch for a reason; on a GPU Triton."""
    if device.type == "cuda" and not os.environ.get("PAGELET_KERNELS"):
        return "Triton kernels"
    if reason is not None:
        return f"torch operations ({reason})"
    weights = " and ".join(sorted(formats))
    return f"CPU library {status().tier}, {status().threads} threads, linear weights {weights}"


def choose_packing(quantization: Quantization, dtype: torch.dtype) -> tuple[Packing, Packing]:
    """How the weights of linear layers are held, and those of the head, which 4 bits would harm
    most."""
    if quantization == "int8":
        return Packing("q8"), Packing("q8")
    if quantization == "int4":
        return Packing("q4"), Packing("q8")
    packing = Packing(_FLOAT_FORMATS[dtype], keep_quantized=quantization == "auto")
    return packing, packing


class CpuForward:
    """Takes the place of `CausalLM.forward`, for a model that was built with a packing."""

    def __init__(
        self,
        model: CausalLM,
        kv: Mapping[int, KVBinding],
        *,
        max_tokens: int,
        max_requests: int,
        max_model_len: int,
        num_groups: int,
    ) -> None:
        self._recorder = Recorder(
            dtype=model.placement.dtype,
            max_tokens=max_tokens,
            max_requests=max_requests,
            max_model_len=max_model_len,
            kv=kv,
            num_groups=num_groups,
        )
        self._model = model
        self._hidden = model.record(self._recorder)

    def plain_decode(self, rows: RequestRows, num_tokens: int) -> PlainDecode | None:
        """Decode steps of requests in these state rows in one call, if the model allows it: a
        forward pass with no other ranks in it, and logits as the head gives them. `num_tokens` of
        the vocabulary may be drawn."""
        program, model = self._recorder.only_program, self._model
        plain_head = model.lm_head is not None and model.config.final_logit_softcap is None
        if program is None or not plain_head:
            return None
        return PlainDecode(self._recorder, program, self._hidden, model, rows, num_tokens)

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
