"""Sampling from logits: temperature, min-p, top-k, top-p and the inverse CDF.

Defined so that every implementation, on any device and in any batch, draws the same token. The
only rounded operation is one exponential for each logit, which `weights.py` fixes to the bit:

    weight[j] = floor(2**40 * exp((logit[j] - max(logits)) / temperature))

All that follows is integer arithmetic, in which the order of additions cannot matter. Then, in
this order:

- min_p drops weights below ceil(min_p * 2**40);
- top_k drops weights below the k-th largest weight;
- top_p drops weights below the last one of the shortest descending prefix that sums to at least
  ceil(top_p * total), the total being of what top_k left.

Tokens tied with the last one kept are kept too, so that no sort's habits decide. The token drawn
is the first, in token-id order, whose inclusive prefix sum is over
min(floor(uniform * total), total - 1). At temperature 0 it is the first that has the largest logit.
"""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.sample import batched, cpu, reference

sample = Op(
    "sample",
    reference.sample,
    cpu={"cpp": cpu.sample, "batched": batched.sample},
    cuda={"triton": triton_implementation(reference.sample), "batched": batched.sample},
)

__all__ = ["sample"]
