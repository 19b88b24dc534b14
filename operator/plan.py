"""From an InferenceService to the objects that run it: a pure function, golden-tested."""

from pagelet.operator.planning.agents import agent_objects
from pagelet.operator.planning.autoscaling import autoscaling_objects
from pagelet.operator.planning.context import Context
from pagelet.operator.planning.exposure import exposure_objects
from pagelet.operator.planning.network import network_objects
from pagelet.operator.planning.objects import Object, agent_name, make
from pagelet.operator.planning.router import router_objects
from pagelet.protocol.inference_service.service import InferenceService


def plan(service: InferenceService, context: Context) -> list[Object]:
    """The objects that a service needs, in the order in which to apply them: what others refer to
    comes first. Owner references are added by who applies them."""
    accounts = make(
        service,
        "ServiceAccount",
        agent_name(service.name, "stable"),
        "agent",
        automountServiceAccountToken=False,
    )
    agents = [
        made for revision in service.revisions for made in agent_objects(service, revision, context)
    ]
    return [
        accounts,
        *network_objects(service, context),
        *agents,
        *router_objects(service, context),
        *exposure_objects(service),
        *autoscaling_objects(service, context),
    ]
