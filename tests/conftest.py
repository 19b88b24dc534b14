"""What tests of several rooms share."""

import os

# Before Triton is imported: its kernels run on CPU tensors, in its interpreter.
os.environ["TRITON_INTERPRET"] = "1"

from cluster.fixtures import control_plane

__all__ = ["control_plane"]
