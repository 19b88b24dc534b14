"""What tests of several rooms share."""

import os

# Before Triton is imported: its kernels run on CPU tensors, in its interpreter.
os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import settings

from cluster.fixtures import control_plane

__all__ = ["control_plane"]

# Nothing is asserted about time: the machine may be busy with anything else.
settings.register_profile("pagelet", deadline=None, print_blob=True)
settings.load_profile("pagelet")
