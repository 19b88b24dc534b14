"""What tests of several rooms share."""

from cluster.fixtures import control_plane

__all__ = ["control_plane"]
