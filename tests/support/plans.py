"""Plans of services in tests of the operator."""

from typing import Any

import msgspec

from pagelet.operator.plan import plan
from pagelet.operator.planning.context import Context
from pagelet.operator.planning.objects import Object
from pagelet.protocol.inference_service.load import read_service
from pagelet.protocol.inference_service.service import InferenceService
from support.broken_services import service as body

CONTEXT = Context(agent_image="agent:1", router_image="router:1")


def make_service(name: str = "service", **spec: Any) -> InferenceService:
    """A service of the namespace `default`."""
    return msgspec.structs.replace(read_service(body(name=name, **spec)), namespace="default")


def planned(name: str = "service", **spec: Any) -> dict[tuple[str, str], Object]:
    """The plan of a service, by kind and name."""
    objects = plan(make_service(name, **spec), CONTEXT)
    by_key = {(made["kind"], made["metadata"]["name"]): made for made in objects}
    assert len(by_key) == len(objects), "one object would overwrite another"
    return by_key


def agent_pod(name: str = "agent", **spec: Any) -> Object:
    """The pod spec of a service's replicas, or of its canary's."""
    pod: Object = planned(**spec)["Deployment", f"service-{name}"]["spec"]["template"]["spec"]
    return pod
