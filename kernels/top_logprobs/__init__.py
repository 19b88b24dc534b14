"""Logprobs of one chosen token a row and of the most likely ones."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.top_logprobs import cpu, reference

top_logprobs = Op(
    "top_logprobs",
    reference.top_logprobs,
    cpu={"cpp": cpu.top_logprobs, "torch_native": reference.top_logprobs},
    cuda={"torch_native": reference.top_logprobs},
)

__all__ = ["top_logprobs"]
