"""What a file of InferenceServices asks of one machine: pools of replicas, and one router.

Pure but for looking whether a model's folder is there: the supervisor makes it so.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from pagelet.local.machine import Demand
from pagelet.protocol.inference_service.commands import (
    SharedModelName,
    agent_arguments,
    credentials,
    router_config,
    s3_environment,
)
from pagelet.protocol.inference_service.load import InvalidServices, Manifest, load_manifest
from pagelet.protocol.inference_service.model import ModelSpec
from pagelet.protocol.inference_service.options import in_fields
from pagelet.protocol.inference_service.parts import SecretKey
from pagelet.protocol.inference_service.quantity import bytes_of, parse_quantity
from pagelet.protocol.inference_service.rollout import rollout_bounds
from pagelet.protocol.inference_service.router import RouterSpec
from pagelet.protocol.inference_service.service import InferenceService, Revision, ServiceSpec
from pagelet.protocol.inference_service.validate import Path as FieldPath
from pagelet.protocol.inference_service.validate import Problem
from pagelet.protocol.router import Pool, RouterConfig
from pagelet.protocol.sizes import format_bytes

MOST_BYTES = 4 << 20
"""Of a file: four times the largest Secret of a cluster."""
MOST_REPLICAS = 256
"""Of a pool: beyond any machine, as a slip of the finger would have it."""
_OF_EACH_SERVICE = ("replicas", "image", "shared_prefixes", "resources", "pod_template")
"""Fields of a router's spec that one router for all services can have differently for each, or that
mean nothing outside of a cluster."""


@dataclasses.dataclass(frozen=True)
class PoolSpec:
    """Interchangeable replicas of one revision of a service."""

    service: InferenceService
    revision: Revision
    environment: Mapping[str, str]
    """What replicas get beside this process's own environment, such as the token for a hub."""
    chat_template: str | None
    """Its text, where the file gives one."""
    is_guarded: bool
    """Whether replicas ask for a key that only the router has, as the router asks its clients."""

    @property
    def name(self) -> str:
        """The service's, with `-canary` for its second revision."""
        suffix = "" if self.revision.name == "stable" else f"-{self.revision.name}"
        return f"{self.service.name}{suffix}"

    @property
    def replicas(self) -> int:
        """How many the file asks for."""
        return self.revision.replicas

    @property
    def is_scaled(self) -> bool:
        """Whether the file leaves their number to `spec.autoscaling`."""
        return self.service.spec.autoscaling is not None and self.revision.name == "stable"

    @property
    def most_replicas(self) -> int:
        """Beyond which it is not scaled."""
        scaling = self.service.spec.autoscaling
        return scaling.max_replicas if scaling and self.is_scaled else self.replicas

    @property
    def num_ranks(self) -> int:
        """Engines of a replica, each with a KV cache of its own."""
        return self.revision.engine.data_parallel_size

    @property
    def num_gpus(self) -> int:
        """GPUs of a replica; 0 if it computes on the CPU."""
        accelerator = self.service.spec.accelerator
        return accelerator.count if accelerator else 0

    @property
    def fingerprint(self) -> str:
        """Another one whenever a running replica is no longer what the file asks for."""
        arguments = agent_arguments(self.service, self.revision, host="", port=0)
        parts = [arguments, self.limits(1.0), sorted(self.environment.items()), self.is_guarded]
        parts.append(self.chat_template)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:12]

    def limits(self, share: float) -> list[str]:
        """Options of `pagelet serve` for a replica on the CPU that has this share of the machine;
        what the file says in `resources` comes first."""
        if self.num_gpus:
            return []
        resources, ranks = self.service.spec.resources, self.num_ranks
        arguments = ["--cpu-share", f"{share / ranks:.4f}"]
        if resources.cpu is not None:
            threads = max(1, math.floor(parse_quantity(resources.cpu) / ranks))
            arguments += ["--cpu-threads", str(threads)]
        if resources.memory is not None:
            arguments += ["--cpu-memory", str(bytes_of(resources.memory) // ranks)]
        return arguments

    def demand(self, replicas: int) -> Demand:
        """What so many replicas are to have of the CPU. What only simulates a model needs no core
        of its own, and with GPUs the CPU has little to do."""
        resources = self.service.spec.resources
        computes = self.revision.engine.runner == "model" and not self.num_gpus
        cores = parse_quantity(resources.cpu) if resources.cpu is not None else self.num_ranks
        memory = 0 if resources.memory is None else bytes_of(resources.memory)
        cores_field = "--cpu-threads" if resources.cpu is not None else "--data-parallel-size"
        is_said = resources.cpu is not None or self.num_ranks > 1
        return Demand(
            self.name,
            replicas,
            float(cores) * replicas if computes else 0.0,
            memory * replicas,
            in_fields(cores_field, self.service, self.revision.name) if is_said else None,
        )

    def surge(self, replicas: int) -> int:
        """How many replicas may be there beyond `replicas` while they are replaced."""
        return rollout_bounds(self.service.spec.rollout, replicas)[0]

    def unavailable(self, replicas: int) -> int:
        """How many of `replicas` may be missing meanwhile."""
        return rollout_bounds(self.service.spec.rollout, replicas)[1]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """All that a file asks for."""

    services: list[InferenceService]
    pools: dict[str, PoolSpec]
    """By their names."""
    api_keys: bytes | None
    """The tenants' key file; None asks for no key."""

    def router_config(
        self,
        replicas_file: Mapping[str, str],
        api_keys_file: str | None,
        replica_api_key_file: str | None,
    ) -> RouterConfig:
        """The one router's configuration; `replicas_file` is by the pools' names."""
        names = {(p.service.name, p.revision.name): name for name, p in self.pools.items()}

        def pool(service: InferenceService, revision: Revision) -> Pool:
            return Pool(replicas_file=replicas_file[names[service.name, revision.name]])

        return router_config(
            self.services,
            pool,
            api_keys_file=api_keys_file,
            replica_api_key_file=replica_api_key_file,
        )


def read_wanted(path: Path, num_gpus: int) -> Wanted:
    """Reads a file for a machine with `num_gpus` GPUs.

    Raises InvalidServices with all that is wrong with it, also for a file that cannot be read.
    """
    try:
        with path.open("rb") as file:  # which may be a device without an end
            content = file.read(MOST_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidServices([f"{path}: cannot be read: {reason}"]) from None
    if len(content) > MOST_BYTES:
        raise InvalidServices(
            [f"{path}: has more than the {format_bytes(MOST_BYTES)} that are read"]
        )
    manifest = load_manifest(text, str(path))
    problems = [manifest.locate(*found) for found in _problems(manifest, num_gpus)]
    if problems:
        raise InvalidServices(problems)
    keys = manifest.services[0].spec.api_keys
    pools = [
        PoolSpec(
            service,
            revision,
            _environment(revision.model, manifest),
            _chat_template(revision.model, manifest),
            keys is not None,
        )
        for service in manifest.services
        for revision in service.revisions
    ]
    wanted = Wanted(
        manifest.services,
        {pool.name: pool for pool in pools},
        _secret(keys, manifest) if keys else None,
    )
    try:
        wanted.router_config(dict.fromkeys(wanted.pools, ""), None, None)
    except SharedModelName as error:
        shared = Problem(("spec", "model", "servedNames"), str(error))
        raise InvalidServices([manifest.locate(error.service, shared)]) from None
    return wanted


def _problems(manifest: Manifest, num_gpus: int) -> Iterator[tuple[InferenceService, Problem]]:
    """What a cluster could do and this machine cannot."""
    first = manifest.services[0]
    names: set[str] = set()
    for service in manifest.services:
        for problem in _problems_of_service(service, manifest, num_gpus):
            yield service, problem
        if _router(service) != _router(first):
            field = "apiKeys" if _router(service)[0] == _router(first)[0] else "router"
            words = (
                f"one router serves all services of a file on one machine, and {first.name} asks "
                "for another one; make router and apiKeys equal, or give the service a file, a "
                "--port and a --state-dir of its own"
            )
            yield service, Problem(("spec", field), words)
        pools = {service.name, *([f"{service.name}-canary"] if service.spec.canary else [])}
        for name in sorted(pools & names):
            words = f"a pool is called {name}, as one of another service and its canary is: change "
            yield service, Problem(("metadata", "name"), f"{words}the name")
        names |= pools


def _problems_of_service(
    service: InferenceService, manifest: Manifest, num_gpus: int
) -> Iterator[Problem]:
    spec = service.spec
    yield from _problems_of_model(("spec", "model"), spec.model, manifest)
    if spec.canary and spec.canary.model:
        yield from _problems_of_model(("spec", "canary", "model"), spec.canary.model, manifest)
    for path, count in _counts(spec):
        if count > MOST_REPLICAS:
            yield Problem(path, f"is {count}; one machine takes at most {MOST_REPLICAS}")
    if spec.accelerator and spec.accelerator.count > num_gpus:
        words = (
            f"is {spec.accelerator.count}, and the number of this machine's GPUs is {num_gpus}; "
            "leave accelerator out to compute on the CPU"
        )
        yield Problem(("spec", "accelerator", "count"), words)
    if spec.api_keys and _secret(spec.api_keys, manifest) is None:
        yield _missing_secret(("spec", "apiKeys"), spec.api_keys)


def _counts(spec: ServiceSpec) -> Iterator[tuple[FieldPath, int]]:
    yield ("spec", "replicas"), spec.replicas
    if spec.canary:
        yield ("spec", "canary", "replicas"), spec.canary.replicas


def _problems_of_model(where: FieldPath, model: ModelSpec, manifest: Manifest) -> Iterator[Problem]:
    uris: list[tuple[FieldPath, str]] = [
        (("uri",), model.uri),
        (("tokenizer",), model.tokenizer or ""),
    ]
    uris += [(("adapters", i, "uri"), adapter.uri) for i, adapter in enumerate(model.adapters)]
    for field, uri in uris:
        if uri.startswith("pvc://"):
            words = (
                f"{uri} is a volume, which is there in a cluster only; write file:///PATH for a "
                "folder of this machine"
            )
            yield Problem((*where, *field), words)
        elif uri.startswith("file://") and not Path(uri.removeprefix("file://")).exists():
            words = f"{uri}: there is no such file or folder on this machine"
            yield Problem((*where, *field), words)
    template = model.chat_template
    if template and template.config_map and _chat_template(model, manifest) is None:
        name, key = template.config_map.name, template.config_map.key
        words = (
            f"the file has no ConfigMap {name} with an entry {key}; add a document of kind "
            "ConfigMap with it in data"
        )
        yield Problem((*where, "chatTemplate", "configMap"), words)
    for each in credentials(model):
        found = _secret(each.secret, manifest)
        at = (*where, "credentialsSecret")
        if found is None:
            if not each.is_optional:
                yield _missing_secret(at, each.secret)
        elif not _is_text(found):
            words = (
                f"the entry {each.secret.key} of the Secret {each.secret.name} is no text, as a "
                "credential is: write it in stringData"
            )
            yield Problem(at, words)


def _router(service: InferenceService) -> tuple[RouterSpec, SecretKey | None]:
    """What of a service's wishes concerns the one router as a whole."""
    usual = RouterSpec()
    shared = {field: getattr(usual, field) for field in _OF_EACH_SERVICE}
    return msgspec.structs.replace(service.spec.router, **shared), service.spec.api_keys


def _secret(key: SecretKey, manifest: Manifest) -> bytes | None:
    return manifest.secrets.get(key.name, {}).get(key.key)


def _missing_secret(where: FieldPath, key: SecretKey) -> Problem:
    words = (
        f"the file has no Secret {key.name} with an entry {key.key}; add a document of kind Secret "
        "with it in stringData"
    )
    return Problem(where, words)


def _is_text(value: bytes) -> bool:
    """Whether it can be the value of an environment variable."""
    try:
        return "\0" not in value.decode()
    except UnicodeDecodeError:
        return False


def _chat_template(model: ModelSpec, manifest: Manifest) -> str | None:
    template = model.chat_template
    if template is None:
        return None
    if template.config_map is None:
        return template.inline
    return manifest.config_maps.get(template.config_map.name, {}).get(template.config_map.key)


def _environment(model: ModelSpec, manifest: Manifest) -> dict[str, str]:
    given = {each.variable: _secret(each.secret, manifest) for each in credentials(model)}
    secret = {name: value.decode().strip() for name, value in given.items() if value is not None}
    return s3_environment(model) | secret
