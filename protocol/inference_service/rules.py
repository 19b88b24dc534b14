"""What the shape of a spec cannot say: rules across fields, in CEL for the API server and in Python
for local mode, with the same words in both.

A rule belongs to a type and holds wherever that type stands. A test gives specs that break each
rule to a real API server, and compares the words.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from pagelet.protocol.autoscaling import schedule
from pagelet.protocol.inference_service.autoscaling import Autoscaling, AutoscalingTargets
from pagelet.protocol.inference_service.engine_rules import ENGINE_RULES
from pagelet.protocol.inference_service.exposure import ServiceExposure
from pagelet.protocol.inference_service.model_rules import MODEL_RULES
from pagelet.protocol.inference_service.parts import IntOrPercent, Part
from pagelet.protocol.inference_service.pod_template import pod_template_problems
from pagelet.protocol.inference_service.rollout import Rollout
from pagelet.protocol.inference_service.rule import Rule
from pagelet.protocol.inference_service.service import Canary, InferenceService, ServiceSpec

_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
MOST_NAME_LENGTH: Final = 50
"""Room for suffixes such as `-canary` in names of at most 63."""


def violations(service: InferenceService) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Path and words of each rule that a service breaks."""
    if not re.fullmatch(_NAME, service.name) or len(service.name) > MOST_NAME_LENGTH:
        yield ("metadata", "name"), NAME_MESSAGE
    if not service.spec.model.served_names and any(
        adapter.name == service.name for adapter in service.spec.model.adapters
    ):
        yield ("spec", "model", "adapters"), ADAPTER_NAME_MESSAGE
    yield from _violations(service.spec, ("spec",))
    # What stands in free-form fields is beyond CEL.
    for path, template, worker in (
        (("spec", "podTemplate"), service.spec.pod_template, "agent"),
        (("spec", "router", "podTemplate"), service.spec.router.pod_template, "router"),
    ):
        for problem in pod_template_problems(template, worker, path):
            yield problem.path, problem.words
    scaling = service.spec.autoscaling
    for index, entry in enumerate(scaling.schedule if scaling is not None else ()):
        # Calendars and time zones are beyond CEL.
        for field, words in schedule.problems(entry, datetime.now(UTC)):
            yield ("spec", "autoscaling", "schedule", index, field), words


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
ADAPTER_NAME_RULE: Final = (
    "!has(self.spec.model.adapters) || "
    "has(self.spec.model.servedNames) && size(self.spec.model.servedNames) > 0 || "
    "!self.spec.model.adapters.exists(a, a.name == self.metadata.name)"
)
ADAPTER_NAME_MESSAGE: Final = (
    "have the service's own name, by which requests ask for the model: change one, or give "
    "servedNames"
)


def _zero(count: IntOrPercent) -> bool:
    return str(count) in ("0", "0%")


RULES: Final[list[Rule[Any]]] = [
    *MODEL_RULES,
    *ENGINE_RULES,
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
        part=ServiceSpec,
        field="canary",
        holds="!has(self.canary) || !has(self.canary.model) || "
        "(has(self.canary.model.adapters) ? size(self.canary.model.adapters) : 0) == "
        "(has(self.model.adapters) ? size(self.model.adapters) : 0) && "
        "(!has(self.canary.model.adapters) || self.canary.model.adapters.all(a, "
        "self.model.adapters.exists(b, b.name == a.name)))",
        message="model.adapters have other names than those of the service, whose requests they "
        "get: give adapters of the same names",
        values={},
        check=lambda s: (
            s.canary is None
            or s.canary.model is None
            or sorted(a.name for a in s.canary.model.adapters)
            == sorted(a.name for a in s.model.adapters)
        ),
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
        holds="!has(self.schedule) || size(self.schedule) == 0 || self.engine != 'hpa'",
        message="a HorizontalPodAutoscaler knows no schedule: set engine: builtin or keda, or "
        "leave it out",
        values={},
        check=lambda a: not a.schedule or a.engine != "hpa",
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
]
