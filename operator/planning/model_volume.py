"""How a replica gets its model: where it is mounted, and what downloads it."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from pagelet.operator.planning.objects import Object
from pagelet.operator.planning.pods import container, scratch_volumes
from pagelet.protocol.inference_service.commands import (
    Credential,
    credentials,
    s3_environment,
    source_of,
)
from pagelet.protocol.inference_service.kind import GROUP
from pagelet.protocol.inference_service.model import (
    AdapterSpec,
    ChatTemplate,
    ModelSpec,
    ModelStorage,
)
from pagelet.protocol.inference_service.service import Revision
from pagelet.protocol.model_folder import s3_folder

_FOLDER: Final = "/models"
_HUB: Final = "/models-hub"
_VOLUME: Final = "models"
_TEMPLATE_FOLDER: Final = "/etc/pagelet-template"
_TEMPLATE: Final = "chat_template.jinja"
_TEMPLATE_ANNOTATION: Final = f"{GROUP}/chat-template"
_DOWNLOADED: Final = ("hf://", "s3://")
_LOADER_RESOURCES: Final = {
    "requests": {"cpu": "100m", "memory": "512Mi"},
    "limits": {"memory": "2Gi"},
}


@dataclasses.dataclass(kw_only=True)
class MountedModel:
    """A model inside of a pod."""

    source: str = ""
    """For `pagelet serve`."""
    tokenizer: str | None = None
    adapters: dict[str, str] = dataclasses.field(default_factory=dict)
    """Sources of its adapters by name."""
    chat_template: str | None = None
    """The file."""
    volumes: list[Object] = dataclasses.field(default_factory=list)
    mounts: list[Object] = dataclasses.field(default_factory=list)
    """Of the agent's container."""
    environment: list[Object] = dataclasses.field(default_factory=list)
    """Of the agent's container."""
    loaders: list[Object] = dataclasses.field(default_factory=list)
    """Init containers."""
    annotations: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of the pod."""


def mount_model(revision: Revision, image: str) -> MountedModel:
    """What a pod of a revision needs for its model."""
    model, mounted = revision.model, MountedModel()
    claims = _mount_claims(model, mounted)
    mounted.source = _in_pod(model, claims)
    if model.tokenizer is not None:
        mounted.tokenizer = _on_claim(model.tokenizer, claims) or _downloaded(model.tokenizer)
    mounted.adapters = {adapter.name: _in_pod(adapter, claims) for adapter in model.adapters}
    if any(uri.startswith(_DOWNLOADED) for uri in model.uris):
        mounted.volumes.append({"name": "hub", **_storage(model.storage or ModelStorage())})
        mounted.mounts.append({"name": "hub", "mountPath": _HUB, "readOnly": True})
        mounted.loaders.append(_loader(revision, image))
        if any(uri.startswith("hf://") for uri in model.uris):
            mounted.environment = [
                {"name": "HF_HOME", "value": _HUB},
                # What the loader has checked is what is served, also when the hub is away.
                {"name": "HF_HUB_OFFLINE", "value": "1"},
            ]
    if model.chat_template is not None:
        _mount_template(model.chat_template, mounted)
    return mounted


def _mount_claims(model: ModelSpec, mounted: MountedModel) -> dict[str, str]:
    """Where each claim that the model or an adapter is on is mounted."""
    places: dict[str, str] = {}
    for uri in model.uris:
        claim = uri.removeprefix("pvc://").partition("/")[0]
        if not uri.startswith("pvc://") or claim in places:
            continue
        number = len(places)
        name = _VOLUME if number == 0 else f"{_VOLUME}-{number}"
        places[claim] = _FOLDER if number == 0 else f"{_FOLDER}-{number}"
        source = {"claimName": claim, "readOnly": True}
        mounted.volumes.append({"name": name, "persistentVolumeClaim": source})
        mounted.mounts.append({"name": name, "mountPath": places[claim], "readOnly": True})
    return places


def _mount_template(template: ChatTemplate, mounted: MountedModel) -> None:
    """An inline one is an annotation of the pod, so that another text is another pod, and no pod
    ever reads the text of another."""
    if template.config_map is None:
        assert template.inline is not None
        mounted.annotations[_TEMPLATE_ANNOTATION] = template.inline
        field = {"fieldPath": f"metadata.annotations['{_TEMPLATE_ANNOTATION}']"}
        source: Object = {"downwardAPI": {"items": [{"path": _TEMPLATE, "fieldRef": field}]}}
    else:
        items = [{"key": template.config_map.key, "path": _TEMPLATE}]
        source = {"configMap": {"name": template.config_map.name, "items": items}}
    mounted.volumes.append({"name": "chat-template", **source})
    mounted.mounts.append(
        {"name": "chat-template", "mountPath": _TEMPLATE_FOLDER, "readOnly": True}
    )
    mounted.chat_template = f"{_TEMPLATE_FOLDER}/{_TEMPLATE}"


def _in_pod(model: ModelSpec | AdapterSpec, claims: Mapping[str, str]) -> str:
    """What a replica serves: the hub's client finds its files by their URI."""
    return _on_claim(model.uri, claims) or _downloaded(source_of(model))


def _on_claim(uri: str, claims: Mapping[str, str]) -> str | None:
    """Path in the pod of `pvc://CLAIM/PATH`; None for another URI."""
    if not uri.startswith("pvc://"):
        return None
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    return f"{claims[claim]}/{path}".rstrip("/")


def _storage(storage: ModelStorage) -> Object:
    if storage.claim is not None:
        return {"persistentVolumeClaim": {"claimName": storage.claim}}
    if storage.host_path is not None:
        return {"hostPath": {"path": storage.host_path, "type": "DirectoryOrCreate"}}
    limit = storage.size_limit
    return {"emptyDir": {} if limit is None else {"sizeLimit": str(limit)}}


def _downloaded(source: str) -> str:
    return f"{_HUB}/{s3_folder(source)}" if source.startswith("s3://") else source


def _loader(revision: Revision, image: str) -> Object:
    """Downloads what is missing, goes on where it stopped, and checks every file's digest."""
    arguments, model = ["fetch"], revision.model
    if model.uri.startswith(_DOWNLOADED):
        arguments.append(source_of(model))
        if revision.engine.runner == "simulated" or revision.engine.load_format == "dummy":
            arguments.append("--no-weights")
    if model.tokenizer is not None and model.tokenizer.startswith(_DOWNLOADED):
        arguments += ["--tokenizer", model.tokenizer]
    for adapter in model.adapters:
        if adapter.uri.startswith(_DOWNLOADED):
            arguments += ["--adapter", source_of(adapter)]
    _, scratch = scratch_volumes()
    values = {"HF_HOME": _HUB}
    if buckets := s3_environment(model):
        values |= {"PAGELET_MODELS": _HUB, **buckets}
    environment: list[Object] = [{"name": name, "value": value} for name, value in values.items()]
    environment += map(_secret, credentials(model))
    return container(
        "fetch-model",
        image,
        arguments,
        mounts=[{"name": "hub", "mountPath": _HUB}, *scratch],
        resources=dict(_LOADER_RESOURCES),
        environment=environment,
    )


def _secret(credential: Credential) -> Object:
    reference: Object = {"name": credential.secret.name, "key": credential.secret.key}
    if credential.is_optional:
        reference["optional"] = True
    return {"name": credential.variable, "valueFrom": {"secretKeyRef": reference}}
