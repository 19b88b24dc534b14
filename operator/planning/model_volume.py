"""How a replica gets its model: where it is mounted, and what downloads it."""

import dataclasses
from typing import Final

from pagelet.operator.planning.objects import Object
from pagelet.operator.planning.pods import container, scratch_volumes
from pagelet.protocol.inference_service.commands import (
    Credential,
    credentials,
    model_source,
    s3_environment,
)
from pagelet.protocol.inference_service.model import ModelStorage
from pagelet.protocol.inference_service.service import Revision
from pagelet.protocol.model_folder import s3_folder

_FOLDER: Final = "/models"
_VOLUME: Final = "models"
_DOWNLOADED: Final = ("hf://", "s3://")
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
    wanted = [uri if uri and uri.startswith(_DOWNLOADED) else None for uri in (source, tokenizer)]
    if any(wanted):
        hub = f"{_FOLDER}-hub"
        volumes.append({"name": "hub", **_storage(model.storage or ModelStorage())})
        mounts.append({"name": "hub", "mountPath": hub, "readOnly": True})
        loaders.append(_loader(revision, image, wanted[0], wanted[1], hub))
        if any(uri and uri.startswith("hf://") for uri in wanted):
            environment = [
                {"name": "HF_HOME", "value": hub},
                # What the loader has checked is what is served, also when the hub is away.
                {"name": "HF_HUB_OFFLINE", "value": "1"},
            ]
        source = _downloaded(source, hub)
        tokenizer = None if tokenizer is None else _downloaded(tokenizer, hub)
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


def _downloaded(uri: str, hub: str) -> str:
    """What a replica serves: the hub's client finds its files by their URI."""
    return f"{hub}/{s3_folder(uri)}" if uri.startswith("s3://") else uri


def _loader(
    revision: Revision, image: str, source: str | None, tokenizer: str | None, hub: str
) -> Object:
    """Downloads what is missing, goes on where it stopped, and checks every file's digest."""
    arguments = ["fetch"]
    if source is not None:
        arguments.append(source)
        if revision.engine.runner == "simulated" or revision.engine.load_format == "dummy":
            arguments.append("--no-weights")
    if tokenizer is not None:
        arguments += ["--tokenizer", tokenizer]
    _, scratch = scratch_volumes()
    values = {"HF_HOME": hub}
    if buckets := s3_environment(revision.model):
        values |= {"PAGELET_MODELS": hub, **buckets}
    environment: list[Object] = [{"name": name, "value": value} for name, value in values.items()]
    environment += map(_secret, credentials(revision.model))
    return container(
        "fetch-model",
        image,
        arguments,
        mounts=[{"name": "hub", "mountPath": hub}, *scratch],
        resources=dict(_LOADER_RESOURCES),
        environment=environment,
    )


def _secret(credential: Credential) -> Object:
    reference: Object = {"name": credential.secret.name, "key": credential.secret.key}
    if credential.is_optional:
        reference["optional"] = True
    return {"name": credential.variable, "valueFrom": {"secretKeyRef": reference}}
