"""What tests of several rooms share."""

import os

# Before Triton is imported: its kernels run on CPU tensors, in its interpreter.
os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import HealthCheck, settings

from cluster.fixtures import control_plane

__all__ = ["control_plane"]

# Nothing is asserted about time: the machine may be busy with anything else. With CI in the
# environment all runs draw the same examples, so that what fails is the change's; others explore.
settings.register_profile(
    "pagelet",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("pagelet")
