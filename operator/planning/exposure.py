"""How clients reach a service: its Service, Ingress and HTTPRoute."""

from pagelet.operator.planning.objects import Object, make, selector
from pagelet.protocol.inference_service.exposure import HTTPRouteExposure, IngressExposure
from pagelet.protocol.inference_service.service import InferenceService


def exposure_objects(service: InferenceService) -> list[Object]:
    """The Service, which has the service's name, and what else was asked for."""
    exposure = service.spec.exposure
    port: Object = {"name": "http", "port": exposure.service.port, "targetPort": "http"}
    if exposure.service.node_port is not None:
        port["nodePort"] = exposure.service.node_port
    objects = [
        make(
            service,
            "Service",
            service.name,
            "router",
            annotations=exposure.service.annotations,
            spec={
                "type": exposure.service.type,
                "selector": selector(service.name, "router"),
                "ports": [port],
            },
        )
    ]
    if exposure.ingress is not None:
        objects.append(_ingress(service, exposure.ingress))
    if exposure.http_route is not None:
        objects.append(_http_route(service, exposure.http_route))
    return objects


def endpoint(service: InferenceService) -> str:
    """The address of the service's API for clients in the cluster."""
    port = service.spec.exposure.service.port
    suffix = "" if port == 80 else f":{port}"
    return f"http://{service.name}.{service.namespace}.svc{suffix}/v1"


def _ingress(service: InferenceService, ingress: IngressExposure) -> Object:
    backend = {"service": {"name": service.name, "port": {"name": "http"}}}
    path = {"path": ingress.path, "pathType": "Prefix", "backend": backend}
    spec: Object = {"rules": [{"host": ingress.host, "http": {"paths": [path]}}]}
    if ingress.class_name is not None:
        spec["ingressClassName"] = ingress.class_name
    if ingress.tls_secret is not None:
        spec["tls"] = [{"hosts": [ingress.host], "secretName": ingress.tls_secret}]
    return make(
        service,
        "Ingress",
        service.name,
        "router",
        api_version="networking.k8s.io/v1",
        annotations=ingress.annotations,
        spec=spec,
    )


def _http_route(service: InferenceService, route: HTTPRouteExposure) -> Object:
    parents = []
    for parent in route.parent_refs:
        reference = {"name": parent.name}
        if parent.namespace is not None:
            reference["namespace"] = parent.namespace
        if parent.section_name is not None:
            reference["sectionName"] = parent.section_name
        parents.append(reference)
    port = service.spec.exposure.service.port
    rule = {
        "backendRefs": [{"name": service.name, "port": port}],
        # A stream lasts as long as its answer; the router has the limits.
        "timeouts": {"request": "0s"},
    }
    spec: Object = {"parentRefs": parents, "rules": [rule]}
    if route.hostnames:
        spec["hostnames"] = list(route.hostnames)
    return make(
        service,
        "HTTPRoute",
        service.name,
        "router",
        api_version="gateway.networking.k8s.io/v1",
        spec=spec,
    )
