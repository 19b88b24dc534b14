"""The InferenceService, `pagelet.dev/v1alpha1`: one model, served by replicas behind a router.

The same types make the CRD's schema (`crd.py`), read the YAML of local mode (`load.py`), and are
what the operator plans from.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from pagelet.protocol.inference_service.autoscaling import Autoscaling
from pagelet.protocol.inference_service.engine import EngineSpec
from pagelet.protocol.inference_service.exposure import Exposure
from pagelet.protocol.inference_service.model import ModelSpec
from pagelet.protocol.inference_service.parts import (
    FreeForm,
    Image,
    Part,
    ReplicaCount,
    SecretKey,
)
from pagelet.protocol.inference_service.pods import Accelerator, Placement, Resources
from pagelet.protocol.inference_service.rollout import Rollout
from pagelet.protocol.inference_service.router import RouterSpec


class Canary(Part, kw_only=True):
    """A second revision that gets a share of the requests. What it leaves out is as in the service
    itself."""

    weight: Annotated[int, Meta(ge=0, le=100)]
    """Percentage of the requests."""
    replicas: ReplicaCount = 1
    """Its replicas."""
    image: Image | None = None
    """Its image."""
    model: ModelSpec | None = None
    """Its model. It answers to the service's names; `servedNames` stays empty here."""
    engine: EngineSpec | None = None
    """Its engine settings, all of them."""


class ServiceSpec(Part, kw_only=True):
    """What is wanted."""

    model: ModelSpec
    """Which model."""
    replicas: ReplicaCount = 1
    """Agent pods. With `autoscaling`, that sets this field through the scale subresource: leave it
    out of the YAML."""
    autoscaling: Autoscaling | None = None
    """Default: none, `replicas` is what people set."""
    image: Image | None = None
    """Container image of the replicas. Default: the operator's."""
    engine: EngineSpec = field(default_factory=EngineSpec)
    """The engine's settings."""
    accelerator: Accelerator | None = None
    """Default: none, the CPU computes."""
    resources: Resources = field(default_factory=Resources)
    """CPU and memory of a replica, or of each of its `nodes`."""
    placement: Placement = field(default_factory=Placement)
    """On which nodes replicas may run."""
    router: RouterSpec = field(default_factory=RouterSpec)
    """The router in front of the replicas."""
    api_keys: SecretKey | None = None
    """The tenants and their keys, hashed, as a file in a Secret (see `pagelet keys`). Default: no
    key is asked for."""
    exposure: Exposure = field(default_factory=Exposure)
    """How clients reach the service."""
    rollout: Rollout = field(default_factory=Rollout)
    """How a change reaches the replicas."""
    canary: Canary | None = None
    """A second revision that gets a share of the requests."""
    pod_template: FreeForm = field(default_factory=dict)
    """Merged over the replicas' pod template as by a strategic merge patch; the engine's container
    is named `agent`."""


class Revision(Part, kw_only=True):
    """One of the revisions that a service runs: interchangeable replicas of one model."""

    name: Literal["stable", "canary"]
    weight: int
    """Percentage of the requests."""
    replicas: int
    image: str | None
    model: ModelSpec
    engine: EngineSpec


class InferenceService(Part, kw_only=True):
    """One InferenceService, checked."""

    name: str
    namespace: str | None
    spec: ServiceSpec

    @property
    def served_names(self) -> list[str]:
        """Names that requests may use; the first is the one in answers."""
        return self.spec.model.served_names or [self.name]

    @property
    def revisions(self) -> list[Revision]:
        """The service itself, and its canary if it has one."""
        spec, canary = self.spec, self.spec.canary
        stable = Revision(
            name="stable",
            weight=100 - (canary.weight if canary else 0),
            replicas=spec.replicas,
            image=spec.image,
            model=spec.model,
            engine=spec.engine,
        )
        if canary is None:
            return [stable]
        return [
            stable,
            Revision(
                name="canary",
                weight=canary.weight,
                replicas=canary.replicas,
                image=canary.image or spec.image,
                model=canary.model or spec.model,
                engine=canary.engine or spec.engine,
            ),
        ]
