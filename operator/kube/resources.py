"""The kinds of objects that the operator deals with, and where the API server has them."""

import dataclasses
from typing import Any, Final

from pagelet.protocol.inference_service.kind import API_VERSION, KIND, PLURAL

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Resource:
    """One kind."""

    api_version: str
    kind: str
    plural: str

    def path(
        self, namespace: str | None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Of one object, of all of a namespace, or of all."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        parts = [root + self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *filter(None, [name, subresource])])


SERVICES: Final = Resource(API_VERSION, KIND, PLURAL)
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
STATEFUL_SETS: Final = Resource("apps/v1", "StatefulSet", "statefulsets")
PODS: Final = Resource("v1", "Pod", "pods")
EVENTS: Final = Resource("v1", "Event", "events")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
HTTP_ROUTES: Final = Resource("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
SCALED_OBJECTS: Final = Resource("keda.sh/v1alpha1", "ScaledObject", "scaledobjects")
AUTOSCALERS: Final = [
    Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    SCALED_OBJECTS,
]
"""Of which a service has one at most."""

CHILDREN: Final = [
    DEPLOYMENTS,
    STATEFUL_SETS,
    Resource("v1", "Service", "services"),
    Resource("v1", "ConfigMap", "configmaps"),
    Resource("v1", "ServiceAccount", "serviceaccounts"),
    Resource("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Resource("networking.k8s.io/v1", "Ingress", "ingresses"),
    HTTP_ROUTES,
    *AUTOSCALERS,
]
"""What a plan is made of."""

_BY_KIND: Final = {(resource.api_version, resource.kind): resource for resource in CHILDREN}


def resource_of(made: Object) -> Resource:
    """The resource of a planned object."""
    return _BY_KIND[made["apiVersion"], made["kind"]]
