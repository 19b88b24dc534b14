"""How a replica gets its model: where it is mounted, and what downloads it."""

import dataclasses
from typing import Final

from pagelet.operator.planning.objects import Object
from pagelet.operator.planning.pods import container, scratch_volumes
from pagelet.protocol.inference_service.commands import model_source
from pagelet.protocol.inference_service.types import ModelSpec, ModelStorage, Revision

_FOLDER: Final = "/models"
_VOLUME: Final = "models"
_LOADER_RESOURCES: Final = {
    "requests": {"cpu": "100m", "memory": "512Mi"},
    "limits": {"memory": "2Gi"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MountedModel:
    """A model inside of a pod."""

    source: str
    """For `pagelet serve`."""
    tokenizer: str | None
    volumes: list[Object]
    mounts: list[Object]
    """Of the agent's container."""
    environment: list[Object]
    """Of the agent's container."""
    loaders: list[Object]
    """Init containers."""


def mount_model(revision: Revision, image: str) -> MountedModel:
    """What a pod of a revision needs for its model."""
    model = revision.model
    volumes, mounts, environment, loaders = [], [], [], []
    if model.uri.startswith("pvc://"):
        source, claim = _on_claim(model.uri)
        volumes.append(
            {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        )
        mounts.append({"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True})
    else:
        source = model_source(model)
    tokenizer = model.tokenizer
    if tokenizer is not None and tokenizer.startswith("pvc://"):
        tokenizer, _ = _on_claim(tokenizer)
    if any(uri.startswith("hf://") for uri in (source, tokenizer or "")):
        hub = f"{_FOLDER}-hub"
        volumes.append({"name": "hub", **_storage(model.storage or ModelStorage())})
        mounts.append({"name": "hub", "mountPath": hub, "readOnly": True})
        environment = [
            {"name": "HF_HOME", "value": hub},
            # What the loader has checked is what is served, also when the hub is away.
            {"name": "HF_HUB_OFFLINE", "value": "1"},
        ]
        loaders.append(_loader(revision, image, source, tokenizer, hub))
    return MountedModel(
        source=source,
        tokenizer=tokenizer,
        volumes=volumes,
        mounts=mounts,
        environment=environment,
        loaders=loaders,
    )


def _on_claim(uri: str) -> tuple[str, str]:
    """Path in the pod, and claim, of `pvc://CLAIM/PATH`."""
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    return f"{_FOLDER}/{path}".rstrip("/"), claim


def _storage(storage: ModelStorage) -> Object:
    if storage.claim is not None:
        return {"persistentVolumeClaim": {"claimName": storage.claim}}
    if storage.host_path is not None:
        return {"hostPath": {"path": storage.host_path, "type": "DirectoryOrCreate"}}
    limit = storage.size_limit
    return {"emptyDir": {} if limit is None else {"sizeLimit": str(limit)}}


def _loader(revision: Revision, image: str, source: str, tokenizer: str | None, hub: str) -> Object:
    """Downloads what is missing, goes on where it stopped, and checks every file's digest."""
    arguments = ["fetch"]
    if source.startswith("hf://"):
        arguments.append(source)
        if revision.engine.runner == "simulated" or revision.engine.load_format == "dummy":
            arguments.append("--no-weights")
    if tokenizer is not None and tokenizer.startswith("hf://"):
        arguments += ["--tokenizer", tokenizer]
    _, scratch = scratch_volumes()
    environment: list[Object] = [{"name": "HF_HOME", "value": hub}]
    if (secret := _credentials(revision.model)) is not None:
        environment.append(secret)
    return container(
        "fetch-model",
        image,
        arguments,
        mounts=[{"name": "hub", "mountPath": hub}, *scratch],
        resources=dict(_LOADER_RESOURCES),
        environment=environment,
    )


def _credentials(model: ModelSpec) -> Object | None:
    secret = model.credentials_secret
    if secret is None:
        return None
    reference = {"name": secret.name, "key": secret.key}
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}
