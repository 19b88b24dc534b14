"""From an InferenceService to what runs it: the command line of a replica, and the router's
configuration. Local mode and the operator share them, so that both run the same."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pagelet.protocol.autoscaling.demand import ScalingTargets
from pagelet.protocol.autoscaling.scaler import ScalingBounds
from pagelet.protocol.inference_service.autoscaling import Autoscaling, AutoscalingTargets
from pagelet.protocol.inference_service.engine import EngineSpec, LoraSpec, SpeculationSpec
from pagelet.protocol.inference_service.model import AdapterSpec, ModelSpec, S3Spec
from pagelet.protocol.inference_service.parts import SecretKey
from pagelet.protocol.inference_service.quantity import bytes_of
from pagelet.protocol.inference_service.service import InferenceService, Revision
from pagelet.protocol.router import (
    ModelRoute,
    Pool,
    ProxyOptions,
    RouterConfig,
    RoutingOptions,
    TenantLimits,
)


def agent_arguments(
    service: InferenceService,
    revision: Revision,
    *,
    host: str,
    port: int,
    source: str | None = None,
    tokenizer: str | None = None,
    adapters: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    kv_events_endpoint: str | None = None,
    kv_events_replay_endpoint: str | None = None,
    log_format: str = "text",
) -> list[str]:
    """The arguments of `pagelet` for a replica of one of `service.revisions`, from `serve` on.

    `source`, `tokenizer` and, by name, `adapters` say where the model lies on the replica's
    machine, if that is not what the spec says (`pvc://`, or downloaded before); `chat_template` is
    the file of the template that the spec asks for. Options at their defaults are left out. KV
    events are published where the engine has a prefix cache and an endpoint is given.
    """
    engine = revision.engine
    arguments = ["serve", source or source_of(revision.model)]
    arguments += ["--host", host, "--port", str(port)]
    for name in service.served_names:
        arguments += ["--served-model-name", name]
    tokenizer = tokenizer or revision.model.tokenizer
    if tokenizer is not None:
        arguments += ["--tokenizer", tokenizer]
    arguments += ["--device", "cuda" if service.spec.accelerator else "cpu"]
    if chat_template is not None:
        arguments += ["--chat-template", chat_template]
    arguments += _engine_arguments(engine)
    if revision.model.adapters:
        arguments += _lora_arguments(revision.model.adapters, adapters or {}, engine.lora)
    arguments += ["--drain-timeout", str(service.spec.rollout.drain_seconds)]
    if kv_events_endpoint is not None and engine.kv_cache.prefix_caching:
        arguments += ["--kv-events-endpoint", kv_events_endpoint]
        if kv_events_replay_endpoint is not None:
            arguments += ["--kv-events-replay-endpoint", kv_events_replay_endpoint]
    if log_format != "text":
        arguments += ["--log-format", log_format]
    return arguments


def _engine_arguments(engine: EngineSpec) -> list[str]:
    """Options that differ from their defaults."""
    default, cache, default_cache = EngineSpec(), engine.kv_cache, EngineSpec().kv_cache
    simulated = engine.simulated
    options: list[tuple[str, object, object]] = [
        ("tensor-parallel-size", engine.tensor_parallel_size, default.tensor_parallel_size),
        ("pipeline-parallel-size", engine.pipeline_parallel_size, default.pipeline_parallel_size),
        ("data-parallel-size", engine.data_parallel_size, default.data_parallel_size),
        ("dtype", engine.dtype, default.dtype),
        ("quantization", engine.quantization, default.quantization),
        ("load-format", engine.load_format, default.load_format),
        ("task", engine.task, default.task),
        ("pooling", engine.pooling, None),
        ("score-tokens", ",".join(engine.score_tokens), ""),
        ("tool-call-parser", engine.tool_call_parser, default.tool_call_parser),
        ("max-model-len", engine.max_model_len, None),
        ("kv-cache-dtype", cache.dtype, default_cache.dtype),
        ("block-size", cache.block_size, default_cache.block_size),
        ("kv-cache-memory", None if cache.memory is None else bytes_of(cache.memory), None),
        ("memory-utilization", cache.memory_fraction, None),
        ("num-blocks", cache.num_blocks, None),
        ("max-num-seqs", engine.max_num_seqs, default.max_num_seqs),
        ("max-num-batched-tokens", engine.max_num_batched_tokens, default.max_num_batched_tokens),
        ("max-step-seconds", engine.max_step_seconds, None),
        ("scheduling-policy", engine.scheduling_policy, default.scheduling_policy),
        ("step-timeout", engine.step_timeout_seconds, default.step_timeout_seconds),
        ("max-queue", engine.max_queue, default.max_queue),
        ("response-store", engine.response_store and bytes_of(engine.response_store), None),
        ("max-body-bytes", bytes_of(engine.max_body), bytes_of(default.max_body)),
        ("log-level", engine.log_level, default.log_level),
        ("runner", engine.runner, default.runner),
    ]
    if engine.speculation is not None:
        options.append(("speculative-config", _speculation(engine.speculation), None))
    if simulated is not None:
        options += [
            ("simulated-step-seconds", simulated.step_seconds, 0),
            ("simulated-token-seconds", simulated.token_seconds, 0),
            ("simulated-context-token-seconds", simulated.context_token_seconds, 0),
            ("simulated-weights-seconds", simulated.weights_seconds, 0),
        ]
    arguments = []
    for name, value, usual in options:
        if value != usual:
            arguments += [f"--{name}", str(value)]
    for size in engine.cudagraph_capture_sizes:
        arguments += ["--cudagraph-capture-sizes", str(size)]
    if engine.enforce_eager:
        arguments.append("--enforce-eager")
    if not cache.prefix_caching:
        arguments.append("--no-enable-prefix-caching")
    if not engine.async_scheduling:
        arguments.append("--no-async-scheduling")
    if engine.expert_parallel:
        arguments.append("--enable-expert-parallel")
    return arguments


def _lora_arguments(
    adapters: Sequence[AdapterSpec], places: Mapping[str, str], limits: LoraSpec | None
) -> list[str]:
    arguments, default = ["--enable-lora"], LoraSpec()
    for adapter in adapters:
        source = places.get(adapter.name) or source_of(adapter)
        arguments += ["--lora-modules", f"{adapter.name}={source}"]
    for name, value, usual in (
        ("max-loras", (limits or default).max_loras, default.max_loras),
        ("max-cpu-loras", (limits or default).max_cpu_loras, default.max_cpu_loras),
        ("max-lora-rank", (limits or default).max_rank, default.max_rank),
    ):
        if value != usual:
            arguments += [f"--{name}", str(value)]
    return arguments


def _speculation(spec: SpeculationSpec) -> str:
    """What `--speculative-config` takes; fields at their defaults are left out."""
    fields = msgspec.structs.asdict(spec)
    usual = msgspec.structs.asdict(SpeculationSpec(method=spec.method))
    return json.dumps({"method": spec.method} | {k: v for k, v in fields.items() if v != usual[k]})


@dataclasses.dataclass(frozen=True)
class Credential:
    """Something secret that a download needs."""

    variable: str
    """Of the environment of who downloads."""
    secret: SecretKey
    is_optional: bool = False


def credentials(model: ModelSpec) -> list[Credential]:
    """Of a model's downloads."""
    secret = model.credentials_secret
    if secret is None:
        return []
    found = []
    if secret.key is not None:
        found.append(Credential("HF_TOKEN", SecretKey(name=secret.name, key=secret.key)))
    if s3_environment(model):
        for entry in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            key = SecretKey(name=secret.name, key=entry)
            found.append(Credential(entry, key, is_optional=entry == "AWS_SESSION_TOKEN"))
    return found


def s3_environment(model: ModelSpec) -> dict[str, str]:
    """Where the bucket of an `s3://` model is, as the environment tells those who download it."""
    if not any(uri.startswith("s3://") for uri in model.uris):
        return {}
    s3 = model.s3 or S3Spec()
    environment = {"AWS_REGION": s3.region}
    if s3.endpoint is not None:
        environment["AWS_ENDPOINT_URL"] = s3.endpoint
    if s3.anonymous:
        environment["AWS_SKIP_SIGNATURE"] = "true"
    return environment


def source_of(model: ModelSpec | AdapterSpec) -> str:
    """A model, or an adapter, as `pagelet serve` and `pagelet fetch` name it. For
    `pvc://CLAIM/PATH`, which only a cluster can mount, it is the caller's to say where; here that
    is refused with ValueError."""
    if model.uri.startswith("pvc://"):
        raise ValueError(
            f"{model.uri}: a PersistentVolumeClaim is there in a cluster only; write file:///PATH "
            "for a folder of this machine"
        )
    return model.uri if model.revision is None else f"{model.uri}@{model.revision}"


class SharedModelName(ValueError):
    """Two services answer to one name of a model; `service` is the second of them."""

    def __init__(self, service: InferenceService, message: str) -> None:
        super().__init__(message)
        self.service = service


def router_config(
    services: Sequence[InferenceService],
    pool: Callable[[InferenceService, Revision], Pool],
    *,
    api_keys_file: str | None = None,
    replica_api_key_file: str | None = None,
) -> RouterConfig:
    """One router's configuration for all of some services; how it routes and what it limits is as
    the first of them says.

    `pool` says where a revision's replicas are found; name and weight are filled in here. Raises
    SharedModelName if two services answer to one name.
    """
    owners: dict[str, str] = {}
    for service in services:
        for name in (*service.served_names, *(a.name for a in service.spec.model.adapters)):
            if owners.setdefault(name, service.name) != service.name:
                raise SharedModelName(
                    service,
                    f"the services {owners[name]} and {service.name} both answer to the model "
                    f"name {name}: change spec.model.servedNames, or an adapter's name, of one of "
                    "them",
                )
    router = services[0].spec.router
    return RouterConfig(
        models=[_route(service, pool) for service in services],
        routing=RoutingOptions(
            policy=router.policy,
            stay_seconds=router.stay_seconds,
            bounded_load=router.bounded_load,
            session_header=router.session_header,
            max_index_blocks=router.max_index_blocks,
        ),
        proxy=ProxyOptions(
            connect_timeout=router.connect_timeout_seconds,
            first_byte_timeout=router.first_byte_timeout_seconds,
            idle_timeout=router.idle_timeout_seconds,
            retry_budget=router.retry_budget,
            breaker_failures=router.breaker_failures,
            health_interval=router.health_interval_seconds,
            queue_size=router.queue_size,
            queue_timeout=router.queue_timeout_seconds,
            max_in_flight=router.max_in_flight,
            max_body_bytes=max(
                bytes_of(revision.engine.max_body)
                for service in services
                for revision in service.revisions
            ),
            drain_timeout=float(services[0].spec.rollout.drain_seconds),
        ),
        api_keys_file=api_keys_file,
        default_limits=TenantLimits(
            requests_per_minute=router.limits.requests_per_minute,
            tokens_per_minute=router.limits.tokens_per_minute,
            concurrency=router.limits.concurrency,
        ),
        replica_api_key_file=replica_api_key_file,
    )


def _route(
    service: InferenceService, pool: Callable[[InferenceService, Revision], Pool]
) -> ModelRoute:
    pools = []
    for revision in service.revisions:
        made = pool(service, revision)
        made.name, made.weight = revision.name, revision.weight
        pools.append(made)
    name, *aliases = service.served_names
    scaling = service.spec.autoscaling
    return ModelRoute(
        name=name,
        aliases=aliases,
        adapters=[adapter.name for adapter in service.spec.model.adapters],
        pools=pools,
        service=service.name,
        scaling=scaling_targets(service),
        starts_from_zero=scaling is not None and scaling.min_replicas == 0,
        shared_prefixes=list(service.spec.router.shared_prefixes),
    )


def scaling_targets(service: InferenceService) -> ScalingTargets:
    """How much work a replica of a service is to have, with what its spec leaves open filled in."""
    scaling, engine = service.spec.autoscaling, service.spec.engine
    targets = scaling.targets if scaling is not None else AutoscalingTargets()
    return ScalingTargets(
        backlog_seconds=targets.backlog_seconds or ScalingTargets().backlog_seconds,
        ttft_seconds=targets.ttft_seconds,
        tpot_seconds=targets.tpot_seconds,
        concurrency=targets.concurrency or engine.max_num_seqs * engine.data_parallel_size,
        kv_use=targets.kv_use,
    )


def scaling_bounds(scaling: Autoscaling) -> ScalingBounds:
    """Between which counts a service is scaled, and how soon."""
    return ScalingBounds(
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        scale_up_seconds=scaling.scale_up_seconds,
        scale_down_seconds=scaling.scale_down_seconds,
    )
