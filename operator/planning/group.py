"""A replica of several nodes: a group of pods with stable names, which meet at the head's address.

As in LeaderWorkerSet a replica is a unit: its pods are made together, and when one fails the whole
group is replaced. Each group is a StatefulSet of its own, whose pod 0 is the head. It is never
changed: another spec makes other groups (`pagelet.operator.groups`): old and new never meet.
"""

import copy
import hashlib
import json

from pagelet.operator.planning.context import Context
from pagelet.operator.planning.objects import (
    GROUP_LABEL,
    POD_INDEX_LABEL,
    TEMPLATE_LABEL,
    Object,
    group_name,
    make,
    nodes_service_name,
    selector,
)
from pagelet.protocol.inference_service.service import InferenceService, Revision


def group_objects(
    service: InferenceService, revision: Revision, template: Object, context: Context
) -> list[Object]:
    """The groups of a revision, and the Service by which their pods find one another. `template` is
    the pod template that they have in common."""
    labels = selector(service.name, "agent", revision.name)
    indices = context.groups.get(revision.name, range(revision.replicas))
    return [
        make(
            service,
            "Service",
            nodes_service_name(service.name, revision.name),
            "agent",
            revision=revision.name,
            spec={
                "clusterIP": "None",
                # The nodes of a replica must meet before it can be ready.
                "publishNotReadyAddresses": True,
                "selector": labels,
            },
        ),
        *(_stateful_set(service, revision, template, index) for index in indices),
    ]


def template_digest(revision: Revision, template: Object) -> str:
    """Tells groups that were made from one spec from those of another."""
    made_of = json.dumps([revision.engine.nodes, template], sort_keys=True)
    return hashlib.sha256(made_of.encode()).hexdigest()[:16]


def _stateful_set(
    service: InferenceService, revision: Revision, template: Object, index: int
) -> Object:
    name = group_name(service.name, revision.name, index)
    labels = selector(service.name, "agent", revision.name) | {GROUP_LABEL: str(index)}
    made = make(
        service,
        "StatefulSet",
        name,
        "agent",
        api_version="apps/v1",
        revision=revision.name,
        spec={
            "replicas": revision.engine.nodes,
            "serviceName": nodes_service_name(service.name, revision.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": labels},
            "template": _of_group(service, revision, template, name, labels),
        },
    )
    digest = template_digest(revision, template)
    made["metadata"]["labels"] |= {GROUP_LABEL: str(index), TEMPLATE_LABEL: digest}
    return made


def _of_group(
    service: InferenceService,
    revision: Revision,
    template: Object,
    name: str,
    labels: dict[str, str],
) -> Object:
    made = copy.deepcopy(template)
    made["metadata"]["labels"] |= labels
    domain = nodes_service_name(service.name, revision.name)
    arguments = ["--nnodes", str(revision.engine.nodes), "--node-rank", "$(NODE_RANK)"]
    arguments += ["--master-addr", f"{name}-0.{domain}.{service.namespace}.svc"]
    field = {"fieldPath": f"metadata.labels['{POD_INDEX_LABEL}']"}
    for container in made["spec"]["containers"]:
        if container["name"] == "agent":
            rank = {"name": "NODE_RANK", "valueFrom": {"fieldRef": field}}
            container["args"] = [*container.get("args", []), *arguments]
            container["env"] = [*container.get("env", []), rank]
    return made
