"""The linear layer."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.linear import reference

linear = Op("linear", reference.linear)

__all__ = ["linear"]
