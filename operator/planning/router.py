"""The router of a service: Deployment, configuration, the right to see its replicas."""

import json
from typing import Final

import msgspec

from pagelet.operator.planning.context import Context
from pagelet.operator.planning.objects import (
    HTTP_PORT,
    Object,
    agents_service_name,
    make,
    router_name,
    selector,
)
from pagelet.operator.planning.pods import (
    REVISIONS_KEPT,
    container,
    container_resources,
    disruption_budget,
    pod_spec,
    pod_template,
    scratch_volumes,
    server_fields,
)
from pagelet.operator.planning.strategic_merge import merge_pod_template
from pagelet.protocol.inference_service.commands import router_config
from pagelet.protocol.inference_service.service import InferenceService, Revision
from pagelet.protocol.router import KubernetesService, Pool

_CONFIG_FOLDER: Final = "/etc/pagelet"
_CONFIG_FILE: Final = "router.json"
_KEYS_FOLDER: Final = "/etc/pagelet-keys"
_STARTUP_SECONDS: Final = 120


def router_objects(service: InferenceService, context: Context) -> list[Object]:
    """What runs a service's router. It follows changes of its configuration while it serves, so
    that they replace no pod."""
    name = router_name(service.name)
    labels = selector(service.name, "router")
    rbac = "rbac.authorization.k8s.io"
    return [
        make(service, "ServiceAccount", name, "router", automountServiceAccountToken=False),
        make(
            service,
            "Role",
            name,
            "router",
            api_version=f"{rbac}/v1",
            rules=[
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                }
            ],
        ),
        make(
            service,
            "RoleBinding",
            name,
            "router",
            api_version=f"{rbac}/v1",
            roleRef={"apiGroup": rbac, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": service.namespace}],
        ),
        make(service, "ConfigMap", name, "router", data={_CONFIG_FILE: _configuration(service)}),
        _deployment(service, name, labels, context),
        disruption_budget(service, name, "router", labels),
    ]


def _configuration(service: InferenceService) -> str:
    def pool(service: InferenceService, revision: Revision) -> Pool:
        name = agents_service_name(service.name, revision.name)
        assert service.namespace is not None
        return Pool(service=KubernetesService(namespace=service.namespace, name=name))

    keys = service.spec.api_keys
    config = router_config(
        [service], pool, api_keys_file=f"{_KEYS_FOLDER}/{keys.key}" if keys else None
    )
    return json.dumps(msgspec.to_builtins(config), indent=2) + "\n"


def _deployment(
    service: InferenceService,
    name: str,
    labels: dict[str, str],
    context: Context,
) -> Object:
    router, rollout = service.spec.router, service.spec.rollout
    volumes, mounts = scratch_volumes()
    volumes.append({"name": "config", "configMap": {"name": name}})
    mounts.append({"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True})
    if service.spec.api_keys is not None:
        # The folder and not the one file: only a folder follows when the Secret changes.
        volumes.append({"name": "keys", "secret": {"secretName": service.spec.api_keys.name}})
        mounts.append({"name": "keys", "mountPath": _KEYS_FOLDER, "readOnly": True})
    arguments = ["router", "--config", f"{_CONFIG_FOLDER}/{_CONFIG_FILE}"]
    arguments += ["--host", "0.0.0.0", "--port", str(HTTP_PORT), "--log-format", "json"]
    pod = pod_spec(
        [
            container(
                "router",
                router.image or context.router_image,
                arguments,
                mounts=mounts,
                resources=container_resources(router.resources),
                # A router has started although its replicas may load their model for long.
                **server_fields(startup_seconds=_STARTUP_SECONDS, started_path="/health"),
            )
        ],
        service_account=name,
        api_access=True,
        drain_seconds=rollout.drain_seconds,
        volumes=volumes,
    )
    template = pod_template(service.name, "router", labels, pod)
    return make(
        service,
        "Deployment",
        name,
        "router",
        api_version="apps/v1",
        spec={
            "replicas": router.replicas,
            "selector": {"matchLabels": labels},
            "revisionHistoryLimit": REVISIONS_KEPT,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": merge_pod_template(template, router.pod_template, labels),
        },
    )
