"""A service's conditions from what is there."""

from typing import Any

import pytest

from pagelet.operator.groups import Group
from pagelet.operator.kube.resources import Object
from pagelet.operator.status.compute import Observed, compute_status, invalid_status
from pagelet.operator.status.problems import Problem, pod_problem
from pagelet.protocol.inference_service.service import InferenceService
from pagelet.protocol.inference_service.status import Condition, ServiceStatus
from support.plans import make_service

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def deployment(
    wanted: int = 1, *, replicas: int = 1, ready: int = 1, updated: int = 1, **status: Any
) -> Object:
    counts = {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": updated}
    return {
        "metadata": {"generation": 1},
        "spec": {"replicas": wanted},
        "status": counts | {"observedGeneration": 1} | status,
    }


def pod(component: str = "agent", **status: Any) -> Object:
    labels = {"pagelet.dev/component": component}
    metadata = {"name": f"{component}-1", "namespace": "team", "labels": labels}
    return {"metadata": metadata, "status": status}


def crashed(exit_code: int, message: str, *, name: str = "agent", **ended: Any) -> Object:
    last = {"exitCode": exit_code, "message": message, **ended}
    container = {
        "name": name,
        "ready": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": last},
    }
    return pod(containerStatuses=[container])


def status_of(
    *pods: Object,
    agents: Object | None = None,
    router: Object | None = None,
    previous: list[Condition] | None = None,
    now: str = NOW,
    service: InferenceService | None = None,
    **observed: Any,
) -> tuple[ServiceStatus, dict[str, Condition]]:
    service = service or make_service()
    seen = Observed(
        deployments={
            "service-agent": agents or deployment(),
            "service-router": router or deployment(),
        },
        pods=pods,
        **observed,
    )
    status = compute_status(service, 7, seen, previous or [], now)
    assert all(condition.observed_generation == 7 for condition in status.conditions)
    return status, {condition.type: condition for condition in status.conditions}


def test_a_pod_with_some_of_our_labels_is_none_of_ours() -> None:
    someones = crashed(1, "no", name="other")
    someones["metadata"]["labels"] = {"pagelet.dev/service": "service"}
    assert status_of(someones)[1]["Degraded"].status == "False"


def test_all_is_well() -> None:
    status, found = status_of()
    assert {kind: (c.status, c.reason) for kind, c in found.items()} == {
        "Valid": ("True", "Accepted"),
        "ModelLoaded": ("True", "Loaded"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("False", "AsExpected"),
        "Ready": ("True", "Serving"),
    }
    assert status.endpoint == "http://service.default.svc/v1"
    assert (status.replicas, status.ready_replicas, status.updated_replicas) == (1, 1, 1)


def test_a_replica_of_several_nodes_counts_once_and_only_whole() -> None:
    service = make_service(replicas=2, engine={"nodes": 2, "tensorParallelSize": 2})
    whole = [pod(conditions=[{"type": "Ready", "status": "True"}]) for _ in range(2)]
    for node, each in enumerate(whole):
        each["metadata"] |= {"uid": str(node), "annotations": {}}

    def group(index: int, pods: list[Object], created: str = NOW) -> Group:
        return Group(
            name=f"service-agent-{index}",
            revision="stable",
            index=index,
            size=2,
            template="new",
            created=created,
            members=None,
            pods=pods,
        )

    def status(*groups: Group) -> tuple[ServiceStatus, dict[str, Condition]]:
        made = {"stable": groups}
        templates = {"stable": "new"}
        return status_of(service=service, groups=made, templates=templates, now=LATER)

    counts, found = status(group(0, whole), group(1, whole[:1]))
    assert (counts.replicas, counts.ready_replicas, counts.updated_replicas) == (2, 1, 2)
    assert (found["Progressing"].reason, found["Ready"].status) == ("RollingOut", "True")
    _, found = status(group(0, whole), group(1, whole))
    assert found["Progressing"].reason == "Complete"
    _, found = status(group(0, whole), group(1, whole[:1], created="2025-12-31T00:00:00Z"))
    assert found["Progressing"].reason == "Stalled"
    assert "service-agent-1 not ready within" in found["Progressing"].message


def test_before_there_is_anything() -> None:
    status = compute_status(make_service(), 1, Observed(deployments={}, pods=[]), [], NOW)
    found = {condition.type: condition for condition in status.conditions}
    assert found["Progressing"].status == "True"
    assert found["Ready"].reason == "Loading"


def test_a_rollout_goes_on_while_old_replicas_serve() -> None:
    _, found = status_of(agents=deployment(3, replicas=4, ready=3, updated=1))
    assert (found["Ready"].status, found["Progressing"].status) == ("True", "True")
    assert "1 of 3 replicas are up to date" in found["Progressing"].message
    # The Deployment's controller has not seen the new spec yet, and its counts are of the old.
    _, found = status_of(agents=deployment(observedGeneration=0))
    assert found["Progressing"].status == "True"


def test_another_model_is_not_loaded_while_only_the_old_replicas_serve() -> None:
    broken = crashed(78, "Error: package://b: the package is not installed")
    _, found = status_of(broken, agents=deployment(2, replicas=3, ready=2, updated=1))
    assert (found["Ready"].status, found["ModelLoaded"].status) == ("True", "False")
    assert "package://b" in found["ModelLoaded"].message
    assert found["Valid"].status == "False"
    _, found = status_of(agents=deployment(2, replicas=3, ready=3, updated=1))
    assert found["ModelLoaded"].status == "True"


def test_a_rollout_that_stands_still_is_told() -> None:
    stuck = {"type": "Progressing", "status": "False", "message": "deadline exceeded"}
    _, found = status_of(agents=deployment(conditions=[stuck]))
    assert found["Progressing"].reason == found["Degraded"].reason == "Stalled"
    assert found["Ready"].status == "True"


@pytest.mark.parametrize("of", ["agents", "router"])
def test_pods_that_cannot_be_made_are_told_of(of: str) -> None:
    words = 'pods "service-7d9-x2c" is forbidden: exceeded quota: team, requested: pods=1'
    refused = {"type": "ReplicaFailure", "status": "True", "message": words}

    def found_with(ready: int) -> Condition:
        made = deployment(replicas=ready, ready=ready, updated=0, conditions=[refused])
        return status_of(**{of: made})[1]["Ready"]  # type: ignore[arg-type]

    told = f"Deployment service-{of.removesuffix('s')} cannot make pods: "
    none, old = found_with(0), found_with(1)
    assert (none.status, none.reason) == ("False", "PodsRefused")
    assert none.message == f"{told}exceeded quota: team, requested: pods=1"
    assert (old.status, old.reason) == ("True", "Degraded"), "the old replicas stay"
    assert told in old.message


def test_a_group_that_lacks_pods_tells_why() -> None:
    group = Group(
        name="service-agent-0",
        revision="stable",
        index=0,
        size=2,
        template="new",
        created=NOW,
        members=None,
        pods=[],
    )
    words = 'Create Pod a-0 in StatefulSet a failed error: pods "a-0" is forbidden: no pods here'
    _, found = status_of(
        service=make_service(engine={"nodes": 2, "tensorParallelSize": 2}),
        groups={"stable": [group]},
        templates={"stable": "new"},
        warnings={"service-agent-0": ["an older one", words]},
    )
    assert found["ModelLoaded"].reason == found["Degraded"].reason == "PodsRefused"
    assert found["Degraded"].message == (
        "StatefulSet service-agent-0 cannot make pods: no pods here"
    )


def test_a_model_is_downloaded_then_loaded() -> None:
    none_ready = deployment(ready=0)
    init = [{"name": "fetch-model", "state": {"running": {}}}]
    _, found = status_of(pod(initContainerStatuses=init), agents=none_ready)
    assert found["Ready"].reason == found["ModelLoaded"].reason == "Downloading"
    _, found = status_of(pod(), agents=none_ready)
    assert found["Ready"].reason == "Loading"


def test_a_router_that_is_not_there_yet() -> None:
    _, found = status_of(router=deployment(ready=0))
    assert (found["Ready"].reason, found["ModelLoaded"].status) == ("RouterStarting", "True")


def test_scaled_to_zero() -> None:
    service = make_service(replicas=0)
    none = deployment(0, replicas=0, ready=0, updated=0)
    seen = Observed(deployments={"service-agent": none, "service-router": deployment()}, pods=[])
    found = {c.type: c for c in compute_status(service, 1, seen, [], NOW).conditions}
    assert found["Ready"].reason == "ScaledToZero"
    assert found["Progressing"].reason == "Complete"
    assert found["Degraded"].status == "False"


@pytest.mark.parametrize(
    ("broken", "reason", "words"),
    [
        (
            crashed(
                78, '{"level": "critical", "message": "a\u2028KV cache of 5 GiB does not fit"}\n'
            ),
            "ConfigurationRefused",
            "pod agent-1: a\u2028KV cache of 5 GiB does not fit",
        ),
        (crashed(78, "loading\nError: no such model\n"), "ConfigurationRefused", "no such model"),
        (
            crashed(2, "Usage: a\n\nError: No such option: --older"),
            "ConfigurationRefused",
            "No such option: --older",
        ),
        (
            crashed(1, ""),
            "Crashing",
            "exit code 1: see kubectl logs agent-1 -n team -c agent --previous",
        ),
        (crashed(137, "", reason="OOMKilled"), "OutOfMemory", "raise resources.memory"),
        (
            crashed(78, "Error: hf://o/n: access is restricted", name="fetch-model"),
            "ModelUnavailable",
            "hf://o/n: access is restricted",
        ),
        (
            pod(
                containerStatuses=[
                    {
                        "name": "agent",
                        "ready": False,
                        "state": {
                            "waiting": {
                                "reason": "CreateContainerConfigError",
                                "message": 'secret "hub" not found',
                            }
                        },
                    }
                ]
            ),
            "CreateContainerConfigError",
            'secret "hub" not found',
        ),
        (
            pod(
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                    }
                ]
            ),
            "Unschedulable",
            "3 Insufficient nvidia.com/gpu",
        ),
    ],
)
def test_what_is_wrong_with_a_pod_is_said_in_its_words(
    broken: Object, reason: str, words: str
) -> None:
    problem = pod_problem(broken)
    assert problem is not None
    assert problem.reason == reason
    assert words in problem.message
    # With no other replica the service is not ready for that reason, ...
    _, found = status_of(broken, agents=deployment(ready=0))
    assert (found["Ready"].status, found["Ready"].reason) == ("False", reason)
    assert words in found["Ready"].message
    # ... and else it serves, and says so all the same.
    _, found = status_of(broken)
    assert (found["Ready"].status, found["Ready"].reason) == ("True", "Degraded")
    assert words in found["Ready"].message


def test_a_server_that_refuses_its_options_is_told_of_in_fields_of_the_spec() -> None:
    broken = crashed(78, "Error: lower --max-model-len to 64 or give --kv-cache-memory 9 bytes")
    _, found = status_of(broken, agents=deployment(ready=0))
    words = "lower spec.engine.maxModelLen to 64 or give spec.engine.kvCache.memory 9 bytes"
    assert words in found["Valid"].message
    assert words in found["Ready"].message
    broken["metadata"]["labels"]["pagelet.dev/revision"] = "canary"
    service = make_service(canary={"weight": 10, "engine": {"maxModelLen": 2048}})
    _, found = status_of(broken, service=service)
    assert "lower spec.canary.engine.maxModelLen to 64" in found["Degraded"].message


def test_a_pod_that_waits_is_explained_by_its_events() -> None:
    waiting = pod(phase="Pending")
    assert pod_problem(waiting) is None
    problem = pod_problem(waiting, ["old", 'secret "tenants" not found'])
    assert problem == Problem("CannotStart", 'pod agent-1: secret "tenants" not found')
    _, found = status_of(waiting, warnings={"agent-1": ['secret "tenants" not found']})
    assert (found["Valid"].status, found["Ready"].status) == ("False", "True")


def test_pods_that_are_ready_or_go_are_no_problem() -> None:
    ready = crashed(1, "before it recovered")
    ready["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    going = crashed(1, "")
    going["metadata"]["deletionTimestamp"] = NOW
    _, found = status_of(ready, going)
    assert found["Degraded"].status == "False"


def test_refusals_are_told_and_the_spec_is_not_valid() -> None:
    _, found = status_of(refusals=["Deployment a: quota exceeded"])
    assert (found["Valid"].status, found["Degraded"].status) == ("False", "True")
    assert "quota exceeded" in found["Ready"].message
    assert found["Ready"].status == "True", "what was there before still serves"


def test_a_transition_has_the_time_of_the_change_alone() -> None:
    first, _ = status_of(agents=deployment(ready=0))
    _, same = status_of(agents=deployment(ready=0), previous=first.conditions, now=LATER)
    assert same["Ready"].last_transition_time == NOW
    _, other = status_of(previous=first.conditions, now=LATER)
    assert other["Ready"].last_transition_time == LATER
    assert other["Valid"].last_transition_time == NOW


def test_an_invalid_spec_leaves_what_runs_and_tells_whether_it_does() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    agent, router = pod(conditions=ready), pod("router", conditions=ready)
    agent["metadata"]["labels"]["pagelet.dev/revision"] = "stable"
    words = "spec.old: there is no such field"

    def after(pods: list[Object], before: ServiceStatus) -> tuple[ServiceStatus, list[str]]:
        status = invalid_status(before, pods, 8, words, LATER)
        found = {condition.type: condition for condition in status.conditions}
        told = ("Valid", "Degraded", "Ready", "ModelLoaded")
        return status, [f"{found[kind].status} {found[kind].reason}" for kind in told]

    invalid = ["False InvalidSpec", "True InvalidSpec"]
    status, told = after([agent, router], status_of()[0])
    assert told == [*invalid, "True Degraded", "True Loaded"]
    assert (status.observed_generation, status.ready_replicas) == (8, 1)
    assert words in next(c.message for c in status.conditions if c.type == "Ready")
    nothing = [*invalid, "False InvalidSpec", "False InvalidSpec"]
    status, told = after([router], status)
    assert (told, status.ready_replicas) == (nothing, 0)
    assert after([], ServiceStatus())[1] == nothing, "as of a new one"


def test_an_ingress_whose_address_another_service_has_is_told_of() -> None:
    service = make_service(exposure={"ingress": {"host": "llm.example.com"}})
    _, found = status_of(service=service, address_of="team/other")
    assert (found["Ready"].status, found["Degraded"].reason) == ("True", "AddressTaken")
    assert found["Degraded"].message == (
        "exposure.ingress: llm.example.com/ is that of the service team/other, which came first: "
        "change host or path of one of them"
    )


def test_an_image_that_cannot_be_pulled_is_one_problem_whatever_the_kubelet_calls_it() -> None:
    def told(reason: str) -> str:
        waiting = {"reason": reason, "message": "no such image"}
        problem = pod_problem(pod(containerStatuses=[{"name": "a", "state": {"waiting": waiting}}]))
        assert problem is not None
        assert "no such image" in problem.message
        return problem.reason

    assert told("ErrImagePull") == told("ImagePullBackOff") == "ImagePullBackOff"


def test_what_is_told_fits_into_the_status() -> None:
    _, found = status_of(refusals=["x" * 5000])
    assert max(len(condition.message) for condition in found.values()) == 4096


def test_a_service_that_wakes_by_itself_is_ready_at_zero_and_another_is_not() -> None:
    none = deployment(0, replicas=0, ready=0, updated=0)
    scaling = {"minReplicas": 0, "maxReplicas": 2}
    _, found = status_of(agents=none, service=make_service(replicas=0, autoscaling=scaling))
    assert (found["Ready"].status, found["Ready"].reason) == ("True", "ScaledToZero")
    _, found = status_of(agents=none, service=make_service(replicas=0))
    assert (found["Ready"].status, found["Ready"].reason) == ("False", "ScaledToZero")


def test_what_the_budget_does_not_let_a_service_have_is_said() -> None:
    gpu = {"resourceName": "nvidia.com/gpu", "count": 1}
    some = make_service(replicas=2, accelerator=gpu)
    _, found = status_of(service=some, replicas_asked=4, agents=deployment(2, ready=2, replicas=2))
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", "BudgetUsedUp")
    assert "2 of 4 replicas" in found["Degraded"].message
    assert found["Ready"].status == "True"
    none = deployment(0, replicas=0, ready=0, updated=0)
    nothing = make_service(replicas=0, accelerator=gpu)
    _, found = status_of(service=nothing, replicas_asked=4, agents=none)
    assert (found["Ready"].status, found["Ready"].reason) == ("False", "BudgetUsedUp")
    _, found = status_of(service=some, replicas_asked=2)
    assert found["Degraded"].status == "False"
