"""The replicas of a revision: a Deployment, or a StatefulSet for each replica of several nodes;
headless Service, disruption budget."""

import math
from typing import Final

from pagelet.operator.planning import pods
from pagelet.operator.planning.context import Context
from pagelet.operator.planning.group import group_objects
from pagelet.operator.planning.model_volume import MountedModel, mount_model
from pagelet.operator.planning.objects import (
    HTTP_PORT,
    KV_EVENTS_PORT,
    KV_REPLAY_PORT,
    POD_INDEX_LABEL,
    Object,
    agent_name,
    agents_service_name,
    make,
    selector,
)
from pagelet.operator.planning.pods import (
    REVISIONS_KEPT,
    container,
    container_resources,
    disruption_budget,
    pod_spec,
    scratch_volumes,
    server_fields,
)
from pagelet.operator.planning.strategic_merge import merge_pod_template
from pagelet.protocol.inference_service.commands import agent_arguments
from pagelet.protocol.inference_service.quantity import parse_quantity
from pagelet.protocol.inference_service.service import InferenceService, Revision

_CPU_SHARED_MEMORY: Final = "256Mi"
_SHARED_MEMORY_GIB_PER_RANK: Final = 1
"""NCCL's buffers between the ranks of a node."""
_DOWNLOAD_SECONDS: Final = 4 * 3600


def agent_objects(service: InferenceService, revision: Revision, context: Context) -> list[Object]:
    """What runs a revision's replicas."""
    name = agent_name(service.name, revision.name)
    labels = selector(service.name, "agent", revision.name)
    template = pod_template(service, revision, context)
    if revision.engine.nodes > 1:
        replicas = group_objects(service, revision, template, context)
        heads = labels | {POD_INDEX_LABEL: "0"}
    else:
        replicas = [_deployment(service, revision, name, labels, template)]
        heads = labels
    return [
        *replicas,
        make(
            service,
            "Service",
            agents_service_name(service.name, revision.name),
            "agent",
            revision=revision.name,
            spec={
                "clusterIP": "None",
                "selector": heads,
                "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http"}],
            },
        ),
        disruption_budget(service, name, "agent", labels, revision.name),
    ]


def _deployment(
    service: InferenceService,
    revision: Revision,
    name: str,
    labels: dict[str, str],
    template: Object,
) -> Object:
    rollout = service.spec.rollout
    return make(
        service,
        "Deployment",
        name,
        "agent",
        api_version="apps/v1",
        revision=revision.name,
        spec={
            "replicas": revision.replicas,
            "selector": {"matchLabels": labels},
            "revisionHistoryLimit": REVISIONS_KEPT,
            "progressDeadlineSeconds": progress_seconds(service, revision),
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": rollout.max_surge,
                    "maxUnavailable": rollout.max_unavailable,
                },
            },
            "template": template,
        },
    )


def progress_seconds(service: InferenceService, revision: Revision) -> int:
    """After so long without it a new replica does not become ready any more."""
    downloads = bool(mount_model(revision, "").loaders)
    return service.spec.rollout.startup_seconds + 300 + (_DOWNLOAD_SECONDS if downloads else 0)


def pod_template(service: InferenceService, revision: Revision, context: Context) -> Object:
    """Of a revision's replicas, or of each node of one."""
    labels = selector(service.name, "agent", revision.name)
    spec = service.spec
    image = revision.image or context.agent_image
    devices = spec.accelerator.count // revision.engine.nodes if spec.accelerator else 0
    model = mount_model(revision, image)
    volumes, mounts = scratch_volumes()
    volumes.append(
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _shared_memory(devices)}}
    )
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    extended = {spec.accelerator.resource_name: devices} if spec.accelerator else {}
    pod = pod_spec(
        [
            container(
                "agent",
                image,
                _arguments(service, revision, model),
                mounts=[*mounts, *model.mounts],
                resources=container_resources(spec.resources, extended),
                environment=model.environment,
                **_server_fields(service, revision),
            )
        ],
        service_account=agent_name(service.name, "stable"),
        api_access=False,
        drain_seconds=spec.rollout.drain_seconds,
        volumes=[*volumes, *model.volumes],
        init_containers=model.loaders,
    )
    if spec.placement.node_selector:
        pod["nodeSelector"] = dict(spec.placement.node_selector)
    if spec.placement.tolerations:
        pod["tolerations"] = list(spec.placement.tolerations)
    template = pods.pod_template(service.name, "agent", labels, pod, model.annotations)
    return merge_pod_template(template, service.spec.pod_template, labels)


def _arguments(service: InferenceService, revision: Revision, model: MountedModel) -> list[str]:
    arguments = agent_arguments(
        service,
        revision,
        host="0.0.0.0",
        port=HTTP_PORT,
        source=model.source,
        tokenizer=model.tokenizer,
        adapters=model.adapters,
        chat_template=model.chat_template,
        kv_events_endpoint=f"tcp://*:{KV_EVENTS_PORT}",
        kv_events_replay_endpoint=f"tcp://*:{KV_REPLAY_PORT}",
        log_format="json",
    )
    cpu, engine = service.spec.resources.cpu, revision.engine
    if cpu is not None and service.spec.accelerator is None:
        # There is no CPU limit from which the engine could learn it.
        # The ranks of a copy of the model share its threads.
        threads = max(1, math.floor(parse_quantity(cpu) / engine.data_parallel_size))
        arguments += ["--cpu-threads", str(threads)]
    return arguments


def _server_fields(service: InferenceService, revision: Revision) -> Object:
    fields = server_fields(startup_seconds=service.spec.rollout.startup_seconds)
    if revision.engine.kv_cache.prefix_caching:
        for rank in range(revision.engine.data_parallel_size):
            for name, port in (("kv-events", KV_EVENTS_PORT), ("kv-replay", KV_REPLAY_PORT)):
                fields["ports"].append(
                    {"name": f"{name}-{rank}", "containerPort": port + rank, "protocol": "TCP"}
                )
    return fields


def _shared_memory(devices: int) -> str:
    return f"{_SHARED_MEMORY_GIB_PER_RANK * devices}Gi" if devices else _CPU_SHARED_MEMORY
