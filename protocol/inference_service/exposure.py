"""`spec.exposure`: how clients reach the service."""

from typing import Annotated, Literal

from msgspec import Meta, field

from pagelet.protocol.inference_service.parts import Name, Part, Strings

Port = Annotated[int, Meta(ge=1, le=65535)]


class ServiceExposure(Part, kw_only=True):
    """The Service that clients call."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """As in a Service."""
    port: Port = 80
    """Its port."""
    node_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """Port on each node, of types NodePort and LoadBalancer. Default: chosen by the cluster."""
    annotations: Strings = field(default_factory=dict)
    """For the cloud's load balancer."""


class IngressExposure(Part, kw_only=True):
    """An Ingress for the service."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    """The host name that it answers to."""
    path: Annotated[str, Meta(max_length=512, pattern=r"^/")] = "/"
    """Prefix of the paths that it takes."""
    class_name: Name | None = None
    """IngressClass. Default: the cluster's default."""
    tls_secret: Name | None = None
    """Secret with the certificate. Default: plain HTTP."""
    annotations: Strings = field(default_factory=dict)
    """For the ingress controller, such as its read timeout, which must exceed the longest pause
    within a stream."""


class ParentRef(Part, kw_only=True):
    """A Gateway."""

    name: Name
    """Its name."""
    namespace: Name | None = None
    """Its namespace. Default: that of the InferenceService."""
    section_name: Name | None = None
    """One of its listeners. Default: all that admit the route."""


class HTTPRouteExposure(Part, kw_only=True):
    """A Gateway API HTTPRoute for the service."""

    parent_refs: Annotated[list[ParentRef], Meta(min_length=1, max_length=16)]
    """The Gateways that it attaches to."""
    hostnames: Annotated[list[Annotated[str, Meta(max_length=253)]], Meta(max_length=16)] = field(
        default_factory=list
    )
    """Host names that it answers to. Default: those of the listeners."""


class Exposure(Part, kw_only=True):
    """How clients reach the service."""

    service: ServiceExposure = field(default_factory=ServiceExposure)
    """The Service that clients call."""
    ingress: IngressExposure | None = None
    """Makes an Ingress."""
    http_route: HTTPRouteExposure | None = field(default=None, name="httpRoute")
    """Makes an HTTPRoute; the cluster must have the Gateway API."""
