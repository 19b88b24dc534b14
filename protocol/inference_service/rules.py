"""What the shape of a spec cannot say: rules across fields, in CEL for the API server and in Python
for local mode, with the same words in both.

A rule belongs to a type and holds wherever that type stands. A test gives specs that break each
rule to a real API server, and compares the words.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from pagelet.protocol.inference_service.autoscaling import Autoscaling, AutoscalingTargets
from pagelet.protocol.inference_service.engine import EngineSpec, KVCacheSpec, SpeculationSpec
from pagelet.protocol.inference_service.exposure import ServiceExposure
from pagelet.protocol.inference_service.model import ModelSpec, ModelStorage
from pagelet.protocol.inference_service.parts import IntOrPercent, Part, Quantity
from pagelet.protocol.inference_service.pods import Resources
from pagelet.protocol.inference_service.quantity import parse_quantity
from pagelet.protocol.inference_service.rollout import Rollout
from pagelet.protocol.inference_service.service import Canary, InferenceService, ServiceSpec

P = TypeVar("P", bound=Part)

_LEAST_BYTES: Final = 1 << 20
_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
MOST_NAME_LENGTH: Final = 50
"""Room for suffixes such as `-canary` in names of at most 63."""
_URI: Final = (
    r"^(hf://[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+(/[^@]+[.]gguf)?"
    r"|s3://[a-z0-9][a-z0-9.-]+/([^@]*[^@/])/?"
    r"|pvc://[a-z0-9][a-z0-9.-]*(/.+)?|file:///.+"
    r"|package://[A-Za-z0-9][A-Za-z0-9._-]*(/[^/]+[.]gguf)?)$"
)
_URI_FORMS: Final = (
    "hf://ORG/NAME, hf://ORG/NAME/FILE.gguf, s3://BUCKET/FOLDER, s3://BUCKET/FILE.gguf, "
    "pvc://CLAIM/PATH, file:///PATH or package://NAME"
)


@dataclasses.dataclass(frozen=True)
class Rule(Generic[P]):
    """A condition on a part of a spec."""

    part: type[P]
    field: str
    """JSON name of the field that an error points at; empty for the part itself."""
    holds: str
    """The condition in CEL; `self` is the part."""
    message: str
    """What to change. In it `{name}` stands for a value of `values`."""
    values: dict[str, tuple[str, Callable[[P], Any]]]
    """The values in the message: in CEL and in Python."""
    check: Callable[[P], bool]
    """The condition in Python."""

    def words(self, part: P) -> str:
        """The message for a part that breaks the rule."""
        return self.message.format(**{name: of(part) for name, (_, of) in self.values.items()})

    def message_expression(self) -> str | None:
        """The message in CEL; None if it is the same for every part."""
        if not self.values:
            return None
        names = re.findall(r"\{(\w+)\}", self.message)
        text = re.sub(r"\{\w+\}", "%s", self.message)
        assert not set(text) & {"'", "\\"}
        assert text.count("%") == len(names)
        # `+` would do, but the API server takes the result of string(1) to be of any length, and
        # refuses what it thinks too costly.
        return f"'{text}'.format([{', '.join(self.values[name][0] for name in names)}])"

    def plain_message(self) -> str:
        """The message where no expression can be evaluated."""
        return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), self.message)


def violations(service: InferenceService) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Path and words of each rule that a service breaks."""
    if not re.fullmatch(_NAME, service.name) or len(service.name) > MOST_NAME_LENGTH:
        yield ("metadata", "name"), NAME_MESSAGE
    yield from _violations(service.spec, ("spec",))


def _violations(
    part: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(part, list):
        for index, item in enumerate(part):
            yield from _violations(item, (*path, index))
    if not isinstance(part, Part):
        return
    for rule in RULES:
        if isinstance(part, rule.part) and not rule.check(part):
            yield (*path, *filter(None, [rule.field])), rule.words(part)
    for info in msgspec.structs.fields(part):
        yield from _violations(getattr(part, info.name), (*path, info.encode_name))


NAME_RULE: Final = (
    f"self.metadata.name.matches('{_NAME}') && size(self.metadata.name) <= {MOST_NAME_LENGTH}"
)
NAME_FORM: Final = (
    f"at most {MOST_NAME_LENGTH} small letters, digits and -, beginning with a letter"
)
NAME_MESSAGE: Final = f"is not a name for Services: {NAME_FORM}"


def _few_bytes(quantity: Quantity | None) -> bool:
    return quantity is not None and parse_quantity(quantity) < _LEAST_BYTES


def _uses(model: ModelSpec, scheme: str) -> bool:
    """Whether something of it is downloaded from there."""
    return any(uri.startswith(f"{scheme}://") for uri in (model.uri, model.tokenizer or ""))


def _uses_cel(scheme: str) -> str:
    tokenizer = f"has(self.tokenizer) && self.tokenizer.startsWith('{scheme}://')"
    return f"(self.uri.startsWith('{scheme}://') || {tokenizer})"


def _claim(uri: str) -> str:
    return uri.removeprefix("pvc://").partition("/")[0]


def _zero(count: IntOrPercent) -> bool:
    return str(count) in ("0", "0%")


def _present(part: P | None) -> P:
    assert part is not None
    return part


def _ranks(engine: EngineSpec) -> int:
    ranks = engine.tensor_parallel_size * engine.pipeline_parallel_size
    return ranks * engine.data_parallel_size


def _kv_fits(spec: ServiceSpec, engine: EngineSpec) -> bool:
    memory, limit = engine.kv_cache.memory, spec.resources.memory
    if spec.accelerator or memory is None or limit is None:
        return True
    return parse_quantity(memory) * engine.data_parallel_size < parse_quantity(limit)


def _enough(quantity_cel: str) -> str:
    return f"quantity(string({quantity_cel})).compareTo(quantity('1Mi')) >= 0"


def _engine_rules(
    path: str, field: str, engine_of: Callable[[ServiceSpec], EngineSpec | None]
) -> list[Rule[ServiceSpec]]:
    """Rules between an engine (the service's or its canary's) and what its pods have."""
    engine = f"self.{path}"
    absent = "false" if path == "engine" else "!has(self.canary) || !has(self.canary.engine)"

    def value(of: Callable[[EngineSpec], Any]) -> Callable[[ServiceSpec], Any]:
        return lambda spec: of(_present(engine_of(spec)))

    def rule(
        *,
        at: str,
        holds: str,
        message: str,
        values: dict[str, tuple[str, Callable[[ServiceSpec], Any]]],
        check: Callable[[ServiceSpec, EngineSpec], bool],
    ) -> Rule[ServiceSpec]:
        def check_if_there(spec: ServiceSpec) -> bool:
            found = engine_of(spec)
            return found is None or check(spec, found)

        return Rule(
            part=ServiceSpec,
            field=field or at,
            holds=f"{absent} || {holds}",
            message=f"{path}.{message}",
            values=values,
            check=check_if_there,
        )

    tensor, data = f"{engine}.tensorParallelSize", f"{engine}.dataParallelSize"
    pipeline = f"{engine}.pipelineParallelSize"
    ranks = f"{tensor} * {pipeline} * {data}"
    kv = f"{engine}.kvCache.memory"
    limit = "self.resources.memory"
    return [
        rule(
            at="accelerator",
            holds=f"!has(self.accelerator) || {ranks} == self.accelerator.count",
            message="tensorParallelSize {tensor} x pipelineParallelSize {pipeline} x "
            "dataParallelSize {data} needs {ranks} of {resource} a replica, and accelerator.count "
            "is {count}: set it to {ranks}, or the sizes so that their product is {count}",
            values={
                "tensor": (tensor, value(lambda e: e.tensor_parallel_size)),
                "pipeline": (pipeline, value(lambda e: e.pipeline_parallel_size)),
                "data": (data, value(lambda e: e.data_parallel_size)),
                "ranks": (ranks, value(_ranks)),
                "resource": (
                    "self.accelerator.resourceName",
                    lambda spec: _present(spec.accelerator).resource_name,
                ),
                "count": (
                    "string(self.accelerator.count)",
                    lambda spec: _present(spec.accelerator).count,
                ),
            },
            check=lambda spec, engine: (
                spec.accelerator is None or _ranks(engine) == spec.accelerator.count
            ),
        ),
        rule(
            at="accelerator",
            holds=f"!has(self.accelerator) || {engine}.quantization != 'int4'",
            message="quantization {quantization} is for the CPU: with an accelerator write auto, "
            "int8 or fp8, or leave the accelerator out",
            values={"quantization": (f"{engine}.quantization", value(lambda e: e.quantization))},
            check=lambda spec, engine: spec.accelerator is None or engine.quantization != "int4",
        ),
        rule(
            at="accelerator",
            holds=f"has(self.accelerator) || {engine}.quantization != 'fp8'",
            message="quantization {quantization} needs an accelerator: on a CPU write int8",
            values={"quantization": (f"{engine}.quantization", value(lambda e: e.quantization))},
            check=lambda spec, engine: spec.accelerator is not None or engine.quantization != "fp8",
        ),
        rule(
            at="accelerator",
            holds=f"has(self.accelerator) || !({engine}.kvCache.dtype in ['float16', 'fp8'])",
            message="kvCache.dtype {dtype} needs an accelerator: on a CPU write auto, float32, "
            "bfloat16 or int8",
            values={"dtype": (f"{engine}.kvCache.dtype", value(lambda e: e.kv_cache.dtype))},
            check=lambda spec, engine: (
                spec.accelerator is not None or engine.kv_cache.dtype not in ("float16", "fp8")
            ),
        ),
        rule(
            at="accelerator",
            holds=f"has(self.accelerator) || !{engine}.enforceEager && "
            f"(!has({engine}.cudagraphCaptureSizes) || size({engine}.cudagraphCaptureSizes) == 0)",
            message="enforceEager and cudagraphCaptureSizes are about CUDA graphs: leave them out "
            "where there is no accelerator",
            values={},
            check=lambda spec, engine: (
                spec.accelerator is not None
                or not (engine.enforce_eager or engine.cudagraph_capture_sizes)
            ),
        ),
        rule(
            at="resources",
            holds=f"has(self.accelerator) || !has({kv}) || !has({limit}) || "
            f"quantity(string({kv})).asApproximateFloat() * double({data}) < "
            f"quantity(string({limit})).asApproximateFloat()",
            message="kvCache.memory {memory} x dataParallelSize {data} leaves no room in "
            "resources.memory {limit}: raise that, which must hold the weights and the largest "
            "step as well, or lower kvCache.memory",
            values={
                "memory": (kv, value(lambda e: e.kv_cache.memory)),
                "data": (data, value(lambda e: e.data_parallel_size)),
                "limit": (limit, lambda spec: spec.resources.memory),
            },
            check=_kv_fits,
        ),
    ]


RULES: Final[list[Rule[Any]]] = [
    Rule(
        part=ModelSpec,
        field="uri",
        holds=f"self.uri.matches('{_URI}')",
        message="{uri} is no model that can be loaded: write "
        + _URI_FORMS
        + ". A revision goes to the field of that name",
        values={"uri": ("self.uri", lambda m: m.uri)},
        check=lambda m: re.fullmatch(_URI, m.uri) is not None,
    ),
    Rule(
        part=ModelSpec,
        field="tokenizer",
        holds=f"!has(self.tokenizer) || self.tokenizer.matches('{_URI}')",
        message="{uri} is no tokenizer that can be loaded: write " + _URI_FORMS,
        values={"uri": ("self.tokenizer", lambda m: m.tokenizer)},
        check=lambda m: m.tokenizer is None or re.fullmatch(_URI, m.tokenizer) is not None,
    ),
    Rule(
        part=ModelSpec,
        field="tokenizer",
        holds="!has(self.tokenizer) || !self.tokenizer.startsWith('pvc://') || "
        "self.uri.startsWith('pvc://') && self.tokenizer.split('/')[2] == self.uri.split('/')[2]",
        message="only a model on a claim may have its tokenizer there, and on the same claim: copy "
        "the tokenizer beside the model",
        values={},
        check=lambda m: (
            not (m.tokenizer or "").startswith("pvc://")
            or (m.uri.startswith("pvc://") and _claim(m.tokenizer or "") == _claim(m.uri))
        ),
    ),
    Rule(
        part=ModelSpec,
        field="revision",
        holds="!has(self.revision) || self.uri.startsWith('hf://')",
        message="only hf:// models have revisions: leave it out",
        values={},
        check=lambda m: m.revision is None or m.uri.startswith("hf://"),
    ),
    Rule(
        part=ModelSpec,
        field="credentialsSecret",
        holds=f"!has(self.credentialsSecret) || {_uses_cel('hf')} || "
        f"{_uses_cel('s3')} && !(has(self.s3) && self.s3.anonymous)",
        message="only hf:// models, and s3:// models of buckets that are not public, are "
        "downloaded with credentials: leave it out",
        values={},
        check=lambda m: (
            m.credentials_secret is None
            or _uses(m, "hf")
            or (_uses(m, "s3") and not (m.s3 is not None and m.s3.anonymous))
        ),
    ),
    Rule(
        part=ModelSpec,
        field="credentialsSecret.key",
        holds=f"!has(self.credentialsSecret) || ({_uses_cel('hf')} ? "
        "has(self.credentialsSecret.key) : !has(self.credentialsSecret.key) || "
        f"!{_uses_cel('s3')})",
        message="is the entry with the token of hf:// models: give it for them, and leave it out "
        "for s3:// models, whose entries are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        values={},
        check=lambda m: (
            m.credentials_secret is None
            or (m.credentials_secret.key is not None) == _uses(m, "hf")
            or not (_uses(m, "hf") or _uses(m, "s3"))
        ),
    ),
    Rule(
        part=ModelSpec,
        field="s3",
        holds=f"!has(self.s3) || {_uses_cel('s3')}",
        message="only s3:// models are in a bucket: leave it out",
        values={},
        check=lambda m: m.s3 is None or _uses(m, "s3"),
    ),
    Rule(
        part=ModelSpec,
        field="storage",
        holds=f"!has(self.storage) || {_uses_cel('hf')} || {_uses_cel('s3')}",
        message="only hf:// and s3:// models are downloaded: leave it out",
        values={},
        check=lambda m: m.storage is None or _uses(m, "hf") or _uses(m, "s3"),
    ),
    Rule(
        part=ModelStorage,
        field="",
        holds="(has(self.sizeLimit) ? 1 : 0) + (has(self.claim) ? 1 : 0) + "
        "(has(self.hostPath) ? 1 : 0) <= 1",
        message="sizeLimit (of a volume for each pod), claim and hostPath are three different "
        "places: keep one of them",
        values={},
        check=lambda s: [s.size_limit, s.claim, s.host_path].count(None) >= 2,
    ),
    Rule(
        part=KVCacheSpec,
        field="",
        holds="(has(self.memory) ? 1 : 0) + (has(self.memoryFraction) ? 1 : 0) + "
        "(has(self.numBlocks) ? 1 : 0) <= 1",
        message="memory, memoryFraction and numBlocks all set the size: keep one of them",
        values={},
        check=lambda c: [c.memory, c.memory_fraction, c.num_blocks].count(None) >= 2,
    ),
    Rule(
        part=KVCacheSpec,
        field="memory",
        holds=f"!has(self.memory) || {_enough('self.memory')}",
        message="{memory} is less than 1Mi: write a unit, such as {memory}Gi",
        values={"memory": ("self.memory", lambda c: c.memory)},
        check=lambda c: not _few_bytes(c.memory),
    ),
    Rule(
        part=SpeculationSpec,
        field="model",
        holds="(self.method == 'draft_model') == has(self.model)",
        message="is what the method draft_model guesses with: give it there, and nowhere else",
        values={},
        check=lambda s: (s.method == "draft_model") == (s.model is not None),
    ),
    Rule(
        part=SpeculationSpec,
        field="promptLookupMin",
        holds="!has(self.promptLookupMin) || !has(self.promptLookupMax) || "
        "self.promptLookupMin <= self.promptLookupMax",
        message="{min} is more than promptLookupMax {max}: swap them",
        values={
            "min": ("self.promptLookupMin", lambda s: s.prompt_lookup_min),
            "max": ("self.promptLookupMax", lambda s: s.prompt_lookup_max),
        },
        check=lambda s: (
            s.prompt_lookup_min is None
            or s.prompt_lookup_max is None
            or s.prompt_lookup_min <= s.prompt_lookup_max
        ),
    ),
    Rule(
        part=SpeculationSpec,
        field="method",
        holds="self.method == 'ngram' || "
        "(!has(self.promptLookupMin) && !has(self.promptLookupMax))",
        message="promptLookupMin and promptLookupMax are for the method ngram: leave them out",
        values={},
        check=lambda s: (
            s.method == "ngram" or (s.prompt_lookup_min is None and s.prompt_lookup_max is None)
        ),
    ),
    Rule(
        part=Resources,
        field="memory",
        holds=f"!has(self.memory) || {_enough('self.memory')}",
        message="{memory} is less than 1Mi: write a unit, such as {memory}Gi",
        values={"memory": ("self.memory", lambda r: r.memory)},
        check=lambda r: not _few_bytes(r.memory),
    ),
    Rule(
        part=EngineSpec,
        field="simulated",
        holds="!has(self.simulated) || self.runner == 'simulated'",
        message="is the time model of another runner: set runner: simulated, or leave it out",
        values={},
        check=lambda e: e.simulated is None or e.runner == "simulated",
    ),
    Rule(
        part=EngineSpec,
        field="nodes",
        holds="self.tensorParallelSize * self.pipelineParallelSize % self.nodes == 0",
        message="{nodes} nodes cannot share tensorParallelSize {tensor} x pipelineParallelSize "
        "{pipeline} processes evenly: give sizes whose product is a multiple of nodes",
        values={
            "nodes": ("string(self.nodes)", lambda e: e.nodes),
            "tensor": ("string(self.tensorParallelSize)", lambda e: e.tensor_parallel_size),
            "pipeline": ("string(self.pipelineParallelSize)", lambda e: e.pipeline_parallel_size),
        },
        check=lambda e: e.tensor_parallel_size * e.pipeline_parallel_size % e.nodes == 0,
    ),
    Rule(
        part=EngineSpec,
        field="nodes",
        holds="self.nodes == 1 || self.runner == 'model'",
        message="the simulated runner has no processes that nodes could divide: leave it out",
        values={},
        check=lambda e: e.nodes == 1 or e.runner == "model",
    ),
    Rule(
        part=EngineSpec,
        field="scoreTokens",
        holds="!has(self.scoreTokens) || size(self.scoreTokens) == 0 || "
        "size(self.scoreTokens) == 2 && self.scoreTokens[0] != self.scoreTokens[1]",
        message="are two different tokens, such as [no, yes]",
        values={},
        check=lambda e: not e.score_tokens or len(set(e.score_tokens)) == 2,
    ),
    Rule(
        part=ServiceExposure,
        field="nodePort",
        holds="!has(self.nodePort) || self.type != 'ClusterIP'",
        message="a Service of type ClusterIP has no port on nodes: set type: NodePort, or leave it "
        "out",
        values={},
        check=lambda s: s.node_port is None or s.type != "ClusterIP",
    ),
    Rule(
        part=Rollout,
        field="",
        holds="!(string(self.maxSurge) in ['0', '0%'] && "
        "string(self.maxUnavailable) in ['0', '0%'])",
        message="maxSurge and maxUnavailable are both 0, so that no replica could ever be "
        "replaced: set one of them to 1",
        values={},
        check=lambda r: not (_zero(r.max_surge) and _zero(r.max_unavailable)),
    ),
    Rule(
        part=Canary,
        field="",
        holds="has(self.image) || has(self.model) || has(self.engine)",
        message="differs in nothing from the service: give it an image, a model or an engine",
        values={},
        check=lambda c: not (c.image is None and c.model is None and c.engine is None),
    ),
    Rule(
        part=Canary,
        field="model",
        holds="!has(self.model) || !has(self.model.servedNames) || "
        "size(self.model.servedNames) == 0",
        message="answers to the names of the service: leave servedNames out",
        values={},
        check=lambda c: c.model is None or not c.model.served_names,
    ),
    Rule(
        part=Autoscaling,
        field="maxReplicas",
        holds="self.minReplicas <= self.maxReplicas",
        message="maxReplicas {most} is less than minReplicas {least}: raise it, or lower that",
        values={
            "most": ("string(self.maxReplicas)", lambda a: a.max_replicas),
            "least": ("string(self.minReplicas)", lambda a: a.min_replicas),
        },
        check=lambda a: a.min_replicas <= a.max_replicas,
    ),
    Rule(
        part=Autoscaling,
        field="minReplicas",
        holds="self.engine != 'hpa' || self.minReplicas >= 1",
        message="a HorizontalPodAutoscaler keeps one replica at least: set minReplicas to 1, or "
        "engine to keda or builtin",
        values={},
        check=lambda a: a.engine != "hpa" or a.min_replicas >= 1,
    ),
    Rule(
        part=Autoscaling,
        field="schedule",
        holds="!has(self.schedule) || size(self.schedule) == 0 || self.engine == 'keda'",
        message="only KEDA scales by a schedule: set engine: keda, or leave it out",
        values={},
        check=lambda a: not a.schedule or a.engine == "keda",
    ),
    Rule(
        part=Autoscaling,
        field="schedule",
        holds="!has(self.schedule) || self.schedule.all(entry, entry.replicas <= self.maxReplicas)",
        message="an entry of the schedule asks for more than maxReplicas {most}: raise that, or "
        "lower the entry",
        values={"most": ("string(self.maxReplicas)", lambda a: a.max_replicas)},
        check=lambda a: all(entry.replicas <= a.max_replicas for entry in a.schedule),
    ),
    Rule(
        part=Autoscaling,
        field="prometheusAddress",
        holds="!has(self.prometheusAddress) || self.engine == 'keda'",
        message="only KEDA asks Prometheus itself: set engine: keda, or leave it out",
        values={},
        check=lambda a: a.prometheus_address is None or a.engine == "keda",
    ),
    Rule(
        part=AutoscalingTargets,
        field="",
        holds="!(has(self.backlogSeconds) && has(self.ttftSeconds))",
        message="backlogSeconds and ttftSeconds both say how long a prompt may wait: keep one of "
        "them",
        values={},
        check=lambda t: t.backlog_seconds is None or t.ttft_seconds is None,
    ),
    *_engine_rules("engine", "", lambda spec: spec.engine),
    *_engine_rules(
        "canary.engine", "canary", lambda spec: spec.canary.engine if spec.canary else None
    ),
]
