"""What low-rank adapters add to a linear layer's outputs (LoRA, arXiv 2106.09685), several of them
in one batch (as in Punica, arXiv 2310.18547)."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.lora import reference
from pagelet.kernels.lora.low_rank import LowRank

add_low_rank = Op("add_low_rank", reference.add_low_rank)

__all__ = ["LowRank", "add_low_rank"]
