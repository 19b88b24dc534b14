"""A script of this folder as a server in the cluster."""

from pathlib import Path
from typing import Any, Final

from cluster.images import PAGELET_IMAGES

_FOLDER: Final = Path(__file__).parent


def served(
    name: str, script: str, *arguments: str, port: int, secret: str = ""
) -> list[dict[str, Any]]:
    """A Deployment and a Service of that name and port. The files of `secret`, if any, are in
    `/secret`."""
    labels = {"app": name}
    container: dict[str, Any] = {
        "name": name,
        "image": PAGELET_IMAGES["router"],
        "command": ["python3", "-c", (_FOLDER / script).read_text(), *arguments],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
    }
    pod: dict[str, Any] = {"containers": [container]}
    if secret:
        container["volumeMounts"] = [{"name": "secret", "mountPath": "/secret"}]
        pod["volumes"] = [{"name": "secret", "secret": {"secretName": secret}}]
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"port": port}]},
        },
    ]
