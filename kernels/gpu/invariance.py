"""Whether a row's bits must not depend on the rest of its batch, nor on how its prompt was cut into
chunks: `PAGELET_BATCH_INVARIANT=1` when the process starts.

Kernels that choose tiles by the number of rows then have one tile for every number, so that each
sum is made in one order, and attention never splits a context (He et al., "Defeating
Nondeterminism in LLM Inference", 2025). Kernels that give a row a program of its own are so anyway.
"""

import os

BATCH_INVARIANT = os.environ.get("PAGELET_BATCH_INVARIANT") == "1"
