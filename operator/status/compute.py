"""A service's status from what is there: a pure function."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pagelet.operator.groups import Group
from pagelet.operator.kube.resources import Object
from pagelet.operator.planning.agents import progress_seconds
from pagelet.operator.planning.exposure import endpoint
from pagelet.operator.planning.objects import (
    POD_INDEX_LABEL,
    REVISION_LABEL,
    Component,
    agent_name,
    router_name,
    selector,
)
from pagelet.operator.replicas import is_head, is_of, is_ready
from pagelet.operator.status.problems import (
    Problem,
    creation_problem,
    is_downloading,
    pod_problem,
)
from pagelet.protocol.inference_service.options import in_fields
from pagelet.protocol.inference_service.service import InferenceService
from pagelet.protocol.inference_service.status import (
    MOST_MESSAGE_CHARACTERS,
    Condition,
    ConditionStatus,
    ConditionType,
    PodCounts,
    ReplicaRates,
    ServiceStatus,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """What is there of one service."""

    deployments: Mapping[str, Object]
    """By name."""
    groups: Mapping[str, Sequence[Group]] = dataclasses.field(default_factory=dict)
    """By revision, where a replica has several nodes."""
    templates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What groups that are up to date were made from, by revision."""
    pods: Sequence[Object]
    warnings: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Messages of events of pods that wait, and of StatefulSets that lack pods, by name."""
    refusals: Sequence[str] = ()
    """What the API server said of objects that it did not take."""
    rates: Sequence[ReplicaRates] = ()
    address_of: str | None = None
    """Another service that has the address of this one's Ingress, and came first."""
    replicas_asked: int | None = None
    """What the spec says, where the service's own number is what the budget leaves it."""


@dataclasses.dataclass(frozen=True)
class _Counts:
    """Of a Deployment, or of a revision's groups."""

    wanted: int
    replicas: int
    ready: int
    updated: int
    settled: bool
    """Whether all pods are of the last spec, and ready."""
    stalled: str | None
    """Why it makes no progress."""

    @property
    def updated_and_ready(self) -> int:
        """At least so many of the last spec are ready: the others may all be ready, too."""
        return max(0, self.ready - (self.replicas - self.updated))


def compute_status(
    service: InferenceService,
    generation: int,
    observed: Observed,
    previous: Iterable[Condition],
    now: str,
) -> ServiceStatus:
    """The status of a service whose spec is sound. `now` is RFC 3339."""
    agents, canary = _agents(service, observed, now)
    router = _counts(observed, router_name(service.name))
    agent_problems = _problems(service, observed, "agent")
    problems = [*agent_problems, *_problems(service, observed, "router")]
    ready_replicas = agents.ready + (canary.ready if canary else 0)
    valid = _valid(observed.refusals, problems)
    loaded = agents.updated_and_ready + (canary.updated_and_ready if canary else 0)
    short = _short(service, observed.replicas_asked)
    model = _model(service, loaded, observed.pods, agent_problems, short)
    progressing = _progressing([agents, router, *([canary] if canary else [])])
    if ingress := service.spec.exposure.ingress if observed.address_of else None:
        problems.append(
            Problem(
                "AddressTaken",
                f"exposure.ingress: {ingress.host}{ingress.path} is that of the service "
                f"{observed.address_of}, which came first: change host or path of one of them",
            )
        )
    degraded = _degraded(observed.refusals, problems, progressing, short)
    ready = _ready(service, agents, ready_replicas, router, valid, degraded, model)
    return ServiceStatus(
        observed_generation=generation,
        conditions=_dated([valid, model, progressing, degraded, ready], previous, generation, now),
        replicas=agents.replicas,
        ready_replicas=agents.ready,
        updated_replicas=agents.updated,
        canary=_pod_counts(canary) if canary else None,
        router=_pod_counts(router),
        selector=",".join(f"{label}={value}" for label, value in _replica_labels(service).items()),
        endpoint=endpoint(service),
        rates=list(observed.rates),
    )


def invalid_status(
    before: ServiceStatus, pods: Sequence[Object], generation: int, message: str, now: str
) -> ServiceStatus:
    """The status of a service whose spec cannot be planned. What runs is left as it is, and still
    counted; what else was said of it stays."""
    agents = [pod for pod in pods if is_of(pod, "agent") and is_head(pod) and is_ready(pod)]
    routers = [pod for pod in pods if is_of(pod, "router") and is_ready(pod)]
    news = [
        _Finding("Valid", "False", "InvalidSpec", message),
        _Finding("Progressing", "False", "InvalidSpec", "nothing is changed until it is valid"),
        _Finding("Degraded", "True", "InvalidSpec", message),
    ]
    if agents and routers:
        counts = f"{len(agents)} replicas answer at {before.endpoint}"
        news.append(_Finding("Ready", "True", "Degraded", f"{counts}, but {message}"))
    else:
        news.append(_Finding("Ready", "False", "InvalidSpec", message))
    if not agents:
        news.append(_Finding("ModelLoaded", "False", "InvalidSpec", message))
    kept = [c for c in before.conditions if c.type not in {finding.type for finding in news}]
    dated = _dated(news, before.conditions, generation, now)
    before.conditions = sorted([*kept, *dated], key=lambda condition: condition.type)
    before.observed_generation = generation
    before.ready_replicas = sum(
        pod["metadata"]["labels"].get(REVISION_LABEL) == "stable" for pod in agents
    )
    return before


@dataclasses.dataclass(frozen=True)
class _Finding:
    """A condition without its dates."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str


def _problems(service: InferenceService, observed: Observed, component: Component) -> list[Problem]:
    """In the words of the spec."""
    found = set()
    for pod in observed.pods:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        if not is_of(pod, component):
            continue
        if (problem := pod_problem(pod, observed.warnings.get(name, ()))) is not None:
            words = in_fields(problem.message, service, labels.get(REVISION_LABEL, "stable"))
            found.add(dataclasses.replace(problem, message=words))
    return sorted({*found, *_creation_problems(service, observed, component)})


def _creation_problems(
    service: InferenceService, observed: Observed, component: Component
) -> Iterator[Problem]:
    """What kept pods from being made at all."""
    if component == "router":
        names = [router_name(service.name)]
    else:
        names = [agent_name(service.name, revision.name) for revision in service.revisions]
        for group in itertools.chain.from_iterable(observed.groups.values()):
            for words in observed.warnings.get(group.name, ())[-1:]:
                yield creation_problem(f"StatefulSet {group.name}", words)
    for name in names:
        status = observed.deployments.get(name, {}).get("status") or {}
        for condition in status.get("conditions") or ():
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                words = condition.get("message") or condition.get("reason") or ""
                yield creation_problem(f"Deployment {name}", words)


def _counts(observed: Observed, name: str) -> _Counts:
    deployment = observed.deployments.get(name)
    if deployment is None:
        return _Counts(0, 0, 0, 0, False, None)
    wanted = int(deployment["spec"].get("replicas", 1))
    status = deployment.get("status") or {}
    replicas, ready = int(status.get("replicas", 0)), int(status.get("readyReplicas", 0))
    updated = int(status.get("updatedReplicas", 0))
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    stalled = None
    for condition in status.get("conditions") or ():
        if condition["type"] == "Progressing" and condition["status"] == "False":
            stalled = condition.get("message") or "no progress"
    settled = seen and replicas == ready == updated == wanted
    return _Counts(wanted, replicas, ready, updated, settled, stalled)


def _agents(
    service: InferenceService, observed: Observed, now: str
) -> tuple[_Counts, _Counts | None]:
    """Of the service itself, and of its canary."""
    found = [
        _counts(observed, agent_name(service.name, revision.name))
        if revision.engine.nodes == 1
        else _group_counts(
            observed.groups.get(revision.name, ()),
            revision.replicas,
            observed.templates[revision.name],
            progress_seconds(service, revision),
            now,
        )
        for revision in service.revisions
    ]
    return found[0], found[1] if len(found) > 1 else None


def _group_counts(
    groups: Sequence[Group], wanted: int, template: str, most_seconds: int, now: str
) -> _Counts:
    updated = [group for group in groups if group.template == template]
    ready = sum(group.is_ready for group in groups)
    late = [g.name for g in updated if not g.is_ready and g.age(now) > most_seconds]
    stalled = f"{', '.join(late)} not ready within {most_seconds} s" if late else None
    settled = len(groups) == len(updated) == ready == wanted
    return _Counts(wanted, len(groups), ready, len(updated), settled, stalled)


def _replica_labels(service: InferenceService) -> dict[str, str]:
    """Of the one pod of each replica that autoscalers of pods should look at."""
    labels = selector(service.name, "agent", "stable")
    return labels | ({POD_INDEX_LABEL: "0"} if service.spec.engine.nodes > 1 else {})


def _pod_counts(counts: _Counts) -> PodCounts:
    return PodCounts(replicas=counts.replicas, ready_replicas=counts.ready)


def _valid(refusals: Sequence[str], problems: Sequence[Problem]) -> _Finding:
    if refusals:
        return _Finding("Valid", "False", "Refused", "; ".join(refusals))
    for problem in problems:
        if problem.is_of_the_spec:
            return _Finding("Valid", "False", problem.reason, problem.message)
    return _Finding("Valid", "True", "Accepted", "the spec can be served")


def _model(
    service: InferenceService,
    loaded: int,
    pods: Sequence[Object],
    problems: Sequence[Problem],
    short: str | None,
) -> _Finding:
    """`loaded` replicas of the present spec are ready; older ones may have had another model."""
    uri = service.spec.model.uri
    if loaded:
        return _Finding("ModelLoaded", "True", "Loaded", f"{uri} is loaded in {loaded} replicas")
    if service.spec.replicas == 0 and short:
        return _Finding("ModelLoaded", "False", "BudgetUsedUp", short)
    if service.spec.replicas == 0:
        return _Finding("ModelLoaded", "False", "ScaledToZero", "spec.replicas is 0")
    for problem in problems:
        return _Finding("ModelLoaded", "False", problem.reason, problem.message)
    if any(is_downloading(pod) for pod in pods):
        return _Finding("ModelLoaded", "False", "Downloading", f"{uri} is being downloaded")
    return _Finding("ModelLoaded", "False", "Loading", f"{uri} is being loaded")


def _progressing(parts: Sequence[_Counts]) -> _Finding:
    stalled = [part.stalled for part in parts if part.stalled]
    if stalled:
        return _Finding("Progressing", "False", "Stalled", "; ".join(stalled))
    if all(part.settled for part in parts):
        return _Finding("Progressing", "False", "Complete", "everything is as the spec says")
    agents, router = parts[0], parts[1]
    message = (
        f"{agents.updated} of {agents.wanted} replicas are up to date, {agents.ready} ready; "
        f"{router.updated} of {router.wanted} routers, {router.ready} ready"
    )
    return _Finding("Progressing", "True", "RollingOut", message)


def _short(service: InferenceService, asked: int | None) -> str | None:
    """What the budget does not let it have, in words."""
    given, accelerator = service.spec.replicas, service.spec.accelerator
    if asked is None or asked <= given or accelerator is None:
        return None
    return (
        f"{given} of {asked} replicas: the operator's budget of {accelerator.resource_name} is "
        "used up; raise it or spec.autoscaling.priority, or scale other services down"
    )


def _degraded(
    refusals: Sequence[str],
    problems: Sequence[Problem],
    progressing: _Finding,
    short: str | None,
) -> _Finding:
    if refusals:
        return _Finding("Degraded", "True", "Refused", "; ".join(refusals))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return _Finding("Degraded", "True", problems[0].reason, problems[0].message + more)
    if progressing.reason == "Stalled":
        return _Finding("Degraded", "True", "Stalled", progressing.message)
    if short:
        return _Finding("Degraded", "True", "BudgetUsedUp", short)
    return _Finding("Degraded", "False", "AsExpected", "nothing is wrong")


def _ready(
    service: InferenceService,
    agents: _Counts,
    ready_replicas: int,
    router: _Counts,
    valid: _Finding,
    degraded: _Finding,
    model: _Finding,
) -> _Finding:
    if ready_replicas and router.ready:
        counts = f"{agents.ready} of {agents.wanted} replicas answer at {endpoint(service)}"
        if degraded.status == "True":
            return _Finding("Ready", "True", "Degraded", f"{counts}, but {degraded.message}")
        return _Finding("Ready", "True", "Serving", counts)
    for finding in (valid, degraded):
        if finding.status != ("True" if finding is valid else "False"):
            return _Finding("Ready", "False", finding.reason, finding.message)
    scaling = service.spec.autoscaling
    if model.reason == "ScaledToZero" and router.ready and scaling and not scaling.min_replicas:
        message = f"a replica starts when a request comes to {endpoint(service)}"
        return _Finding("Ready", "True", "ScaledToZero", message)
    if not ready_replicas:
        return _Finding("Ready", "False", model.reason, model.message)
    return _Finding("Ready", "False", "RouterStarting", "no router is ready yet")


def _fitting(message: str) -> str:
    """Answers of the API server have whole values in them, of any length."""
    most = MOST_MESSAGE_CHARACTERS
    return message if len(message) <= most else f"{message[: most - 3]}..."


def _dated(
    findings: Iterable[_Finding], previous: Iterable[Condition], generation: int, now: str
) -> list[Condition]:
    before = {condition.type: condition for condition in previous}
    dated = []
    for finding in findings:
        old = before.get(finding.type)
        same = old is not None and old.status == finding.status
        dated.append(
            Condition(
                type=finding.type,
                status=finding.status,
                reason=finding.reason,
                message=_fitting(finding.message),
                last_transition_time=old.last_transition_time if old and same else now,
                observed_generation=generation,
            )
        )
    return dated
