"""What a replica's pods have, and where they run."""

from typing import Annotated

from msgspec import Meta, field

from pagelet.protocol.config import PositiveInt
from pagelet.protocol.inference_service.parts import FreeForm, Part, Quantity, Strings


class Accelerator(Part, kw_only=True):
    """What a replica computes on beside the CPU."""

    resource_name: Annotated[str, Meta(max_length=253, pattern=r"^[a-z0-9.-]+/[-A-Za-z0-9_.]+$")]
    """The extended resource that the node's device plugin offers, such as `nvidia.com/gpu`."""
    count: PositiveInt = 1
    """How many of them a replica gets: tensorParallelSize x pipelineParallelSize x
    dataParallelSize. Each of its `nodes` gets its part."""


class Resources(Part, kw_only=True):
    """CPU and memory of a container: requested, and the limit as well."""

    cpu: Quantity | None = None
    """Cores. Requested only: a limit would stop the engine in mid-step."""
    memory: Quantity | None = None
    """Memory, requested and limit; the engine sizes itself by it."""


class Placement(Part, kw_only=True):
    """On which nodes replicas may run."""

    node_selector: Strings = field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Annotated[list[FreeForm], Meta(max_length=32)] = field(default_factory=list)
    """Taints that replicas tolerate, as in a pod."""
