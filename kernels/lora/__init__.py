"""What low-rank adapters add to a linear layer's outputs (LoRA, arXiv 2106.09685), several of them
in one batch (as in Punica, arXiv 2310.18547)."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.lora import reference
from pagelet.kernels.lora.adapters import AdapterRows, AdapterTable
from pagelet.kernels.lora.low_rank import LowRank

add_adapters = Op(
    "add_adapters",
    reference.add_adapters,
    cuda={"triton": triton_implementation(reference.add_adapters)},
)

__all__ = ["AdapterRows", "AdapterTable", "LowRank", "add_adapters"]
