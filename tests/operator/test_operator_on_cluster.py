"""The operator's process against a real API server. There are no nodes: tests say of pods that they
run."""

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagelet.bench.server import free_port
from pagelet.operator.kube.client import NotFound
from pagelet.operator.kube.resources import DEPLOYMENTS, EVENTS, LEASES, SERVICES, Resource
from support.broken_services import service as make
from support.cluster import Api, condition, eventually, running_operator

SERVICE_OBJECTS = Resource("v1", "Service", "services")
ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
NAME = "served"
BODY = make(name=NAME, model={"uri": "package://a"}, router={"replicas": 1})


@pytest.fixture
def operator(
    api: Api, control_plane: Path, namespace: str, tmp_path: Path
) -> Iterator[dict[str, Any]]:
    log = tmp_path / "operator.log"
    port = free_port()
    with running_operator(control_plane, namespace, log, "--port", str(port)):
        yield {"port": port, "log": log}
    assert "Traceback" not in log.read_text(), log.read_text()


async def is_made(api: Api, namespace: str, name: str = NAME) -> dict[tuple[str, str], Any]:
    """Waits for the objects of a service."""
    await eventually(lambda: api.deployment(namespace, f"{name}-router"))
    await eventually(lambda: api.get(SERVICE_OBJECTS, namespace, name))
    return await api.objects(namespace, name)


async def has(api: Api, namespace: str, kind: str, status: str, reason: str) -> Any:
    """Waits for a condition, with all pods running."""

    async def attempt() -> Any:
        await api.run_pods(namespace)
        service = await api.service(namespace, NAME)
        found = condition(service, kind)
        assert (found.get("status"), found.get("reason")) == (status, reason), found
        return service

    return await eventually(attempt)


async def test_a_service_comes_changes_and_goes(
    api: Api, namespace: str, operator: dict[str, Any]
) -> None:
    made = await api.create(SERVICES, namespace, BODY)
    objects = await is_made(api, namespace)
    assert {kind for kind, _ in objects} == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding",
        "Service", "ServiceAccount",
    }  # fmt: skip
    for child in objects.values():
        [owner] = child["metadata"]["ownerReferences"]
        assert owner["uid"] == made["metadata"]["uid"]
        ours = [m for m in child["metadata"]["managedFields"] if m["operation"] == "Apply"]
        assert [manager["manager"] for manager in ours] == ["pagelet-operator"]

    ready = await has(api, namespace, "Ready", "True", "Serving")
    status = ready["status"]
    assert status["observedGeneration"] == ready["metadata"]["generation"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["endpoint"] == f"http://{NAME}.{namespace}.svc/v1"
    assert condition(ready, "Progressing")["reason"] == "Complete"
    await eventually(lambda: event_is_there(api, namespace, "Serving"))

    # An autoscaler writes /scale, and no relist takes it back.
    scale = SERVICES.path(namespace, NAME, "scale")
    found = await api.request("GET", scale)
    assert found["status"]["selector"] == status["selector"]
    found["spec"]["replicas"] = 3
    await api.request("PUT", scale, body=found)
    await eventually(lambda: wants(api, namespace, 3))
    await has(api, namespace, "Progressing", "False", "Complete")
    await asyncio.sleep(6)
    assert await wants(api, namespace, 3)

    # Nobody has put anything on it that could hold it.
    last = await api.service(namespace, NAME)
    assert "finalizers" not in last["metadata"]
    assert "annotations" not in last["metadata"]
    await api.delete(SERVICES, namespace, NAME, last["metadata"]["uid"])
    await eventually(lambda: nothing_is_left(api, namespace))


async def event_is_there(api: Api, namespace: str, reason: str) -> bool:
    events, _ = await api.list_all(EVENTS, namespace, fieldSelector=f"involvedObject.name={NAME}")
    return reason in {event["reason"] for event in events}


async def wants(api: Api, namespace: str, replicas: int) -> bool:
    found = await api.deployment(namespace, f"{NAME}-agent")
    return bool(found["spec"]["replicas"] == replicas)


async def nothing_is_left(api: Api, namespace: str) -> bool:
    return not await api.objects(namespace, NAME)


async def is_gone(api: Api, path: str) -> bool:
    try:
        await api.request("GET", path)
    except NotFound:
        return True
    return False


async def is_refused(api: Api, namespace: str, words: str, name: str = NAME) -> bool:
    """Whether a service says so."""
    return words in condition(await api.service(namespace, name), "Valid")["message"]


async def test_what_others_break_is_mended_and_what_they_add_is_left(
    api: Api, namespace: str, operator: dict[str, Any]
) -> None:
    await api.create(SERVICES, namespace, BODY)
    objects = await is_made(api, namespace)
    headless = objects["Service", f"{NAME}-agents"]
    await api.delete(SERVICE_OBJECTS, namespace, f"{NAME}-agents", headless["metadata"]["uid"])
    await eventually(lambda: api.get(SERVICE_OBJECTS, namespace, f"{NAME}-agents"))

    patch = {
        "metadata": {"annotations": {"team": "a"}},
        "spec": {"progressDeadlineSeconds": 99, "minReadySeconds": 7},
    }
    await api.request(
        "PATCH",
        DEPLOYMENTS.path(namespace, f"{NAME}-agent"),
        {"fieldManager": "someone"},
        patch,
        "application/merge-patch+json",
    )

    async def mended() -> bool:
        found = await api.deployment(namespace, f"{NAME}-agent")
        assert found["metadata"]["annotations"]["team"] == "a"
        assert found["spec"]["minReadySeconds"] == 7
        return bool(found["spec"]["progressDeadlineSeconds"] != 99)

    await eventually(mended)


async def test_what_is_no_longer_wanted_goes(
    api: Api, namespace: str, operator: dict[str, Any]
) -> None:
    canary = {"weight": 10, "image": "agent:2"}
    await api.create(SERVICES, namespace, {**BODY, "spec": BODY["spec"] | {"canary": canary}})
    await is_made(api, namespace)
    canary_objects = {
        key
        for key, made in (await api.objects(namespace, NAME)).items()
        if made["metadata"]["labels"].get("pagelet.dev/revision") == "canary"
    }
    assert len(canary_objects) == 3
    await api.patch_service(namespace, NAME, {"canary": None})

    async def gone() -> bool:
        return not canary_objects & (await api.objects(namespace, NAME)).keys()

    await eventually(gone)
    assert ("Deployment", f"{NAME}-agent") in await api.objects(namespace, NAME)


async def test_an_object_of_someone_else_is_not_taken(
    api: Api, namespace: str, operator: dict[str, Any]
) -> None:
    spec = {"ports": [{"name": "other", "port": 81}]}
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": spec}
    await api.create(SERVICE_OBJECTS, namespace, theirs)
    # Nothing in it is against what is planned: server-side apply would merge the two.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": f"{NAME}-agent"}}
    await api.create(ACCOUNTS, namespace, account)
    await api.create(SERVICES, namespace, BODY)
    service = await has(api, namespace, "Valid", "False", "Refused")
    message = condition(service, "Valid")["message"]
    for taken in (f"Service {NAME}", f"ServiceAccount {NAME}-agent"):
        assert (
            f"there is a {taken} that does not belong to this service: rename the service, or "
            "delete it (the operator did not make it)"
        ) in message
    for kind, name in ((SERVICE_OBJECTS, NAME), (ACCOUNTS, f"{NAME}-agent")):
        kept = await api.get(kind, namespace, name)
        assert "ownerReferences" not in kept["metadata"]
        assert "labels" not in kept["metadata"]


async def test_services_do_not_take_objects_from_one_another(
    api: Api, namespace: str, operator: dict[str, Any]
) -> None:
    await api.create(SERVICES, namespace, BODY)
    before = (await is_made(api, namespace))["Service", f"{NAME}-agents"]
    other = make(name=f"{NAME}-agents", model={"uri": "package://a"}, router={"replicas": 1})
    await api.create(SERVICES, namespace, other)
    whose = f"it belongs to InferenceService {NAME}"
    await eventually(lambda: is_refused(api, namespace, whose, f"{NAME}-agents"))
    after = await api.get(SERVICE_OBJECTS, namespace, f"{NAME}-agents")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_what_a_service_left_behind_is_taken_over_by_the_next_of_its_name(
    api: Api, namespace: str, operator: dict[str, Any]
) -> None:
    await api.create(SERVICES, namespace, BODY)
    before = await is_made(api, namespace)
    path = SERVICES.path(namespace, NAME)
    await api.request("DELETE", path, {"propagationPolicy": "Orphan"})
    await eventually(lambda: is_gone(api, path))
    # Someone else has changed meanwhile what is planned, and the label by which it is found.
    labels = {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}
    agent = DEPLOYMENTS.path(namespace, f"{NAME}-agent")
    merge = "application/merge-patch+json"
    await api.request("PATCH", agent, {}, {"spec": {"progressDeadlineSeconds": 99}}, merge)
    created = await api.create(SERVICES, namespace, BODY)
    uid = created["metadata"]["uid"]

    async def taken() -> bool:
        objects = await api.objects(namespace, NAME)
        owners = [
            [owner["uid"] for owner in made["metadata"].get("ownerReferences") or ()]
            for made in objects.values()
        ]
        return objects.keys() == before.keys() and owners == [[uid]] * len(before)

    await eventually(taken)
    deployment = await api.deployment(namespace, f"{NAME}-agent")
    assert deployment["metadata"]["uid"] == before["Deployment", f"{NAME}-agent"]["metadata"]["uid"]
    # Nor does the lack of that label on one of its objects make it someone else's.
    await api.request("PATCH", agent, {}, labels, merge)

    async def labelled() -> bool:
        found = await api.deployment(namespace, f"{NAME}-agent")
        return "app.kubernetes.io/managed-by" in found["metadata"]["labels"]

    await eventually(labelled)


async def test_what_cannot_work_is_said_and_the_old_replicas_stay(
    api: Api, namespace: str, operator: dict[str, Any]
) -> None:
    await api.create(SERVICES, namespace, BODY)
    before = (await is_made(api, namespace))["Deployment", f"{NAME}-agent"]
    await has(api, namespace, "Ready", "True", "Serving")
    template = {"spec": {"containers": [{"name": "agent", "imagePolicy": "Never"}]}}
    await api.patch_service(namespace, NAME, {"podTemplate": template})
    service = await has(api, namespace, "Ready", "True", "Degraded")
    assert "imagePolicy" in condition(service, "Degraded")["message"]
    after = await api.deployment(namespace, f"{NAME}-agent")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]

    route = {"httpRoute": {"parentRefs": [{"name": "gateway"}]}}
    await api.patch_service(namespace, NAME, {"podTemplate": None, "exposure": route})
    await eventually(lambda: is_refused(api, namespace, "install the Gateway API"))
    await api.patch_service(namespace, NAME, {"exposure": {"httpRoute": None}})
    await has(api, namespace, "Valid", "True", "Accepted")


async def test_a_restarted_operator_finds_its_work_done(
    api: Api, control_plane: Path, namespace: str, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with running_operator(control_plane, namespace, log):
        await api.create(SERVICES, namespace, BODY)
        await is_made(api, namespace)
        await has(api, namespace, "Ready", "True", "Serving")
    # While nobody is there, something changes that no watch will tell of.
    await api.patch_service(namespace, NAME, {"replicas": 2})
    port = free_port()
    with running_operator(control_plane, namespace, log, "--port", str(port)):
        await eventually(lambda: wants(api, namespace, 2))
        await has(api, namespace, "Progressing", "False", "Complete")
        metrics = await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
        assert "pagelet_operator_applied_objects_total 1\n" in metrics, "the Deployment alone"
        assert await asyncio.to_thread(read, f"http://127.0.0.1:{port}/healthz") == "ok"


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
        return text


async def test_one_of_two_operators_acts_and_the_other_takes_over(
    api: Api, control_plane: Path, namespace: str, tmp_path: Path
) -> None:
    logs = [tmp_path / "first.log", tmp_path / "second.log"]

    async def holder() -> str:
        lease = await api.get(LEASES, namespace, "pagelet-operator")
        return str(lease["spec"]["holderIdentity"])

    with running_operator(control_plane, namespace, logs[0], "--identity", "first") as first:
        await eventually(holder)
        with running_operator(control_plane, namespace, logs[1], "--identity", "second"):
            await api.create(SERVICES, namespace, BODY)
            await is_made(api, namespace)
            assert await holder() == "first"
            assert await asyncio.to_thread(first.end, 60) == 0

            async def handed_over() -> bool:
                return await holder() == "second"

            await eventually(handed_over)
            await api.patch_service(namespace, NAME, {"replicas": 3})
            await eventually(lambda: wants(api, namespace, 3))
    assert "first acts from now on" in logs[0].read_text()
    assert "Traceback" not in logs[0].read_text() + logs[1].read_text()


async def test_a_service_whose_operator_is_gone_can_be_deleted(
    api: Api, control_plane: Path, namespace: str, tmp_path: Path
) -> None:
    with running_operator(control_plane, namespace, tmp_path / "log"):
        await api.create(SERVICES, namespace, BODY)
        await is_made(api, namespace)
    made = await api.service(namespace, NAME)
    await api.delete(SERVICES, namespace, NAME, made["metadata"]["uid"])
    with pytest.raises(NotFound):
        await api.service(namespace, NAME)
    await eventually(lambda: nothing_is_left(api, namespace))


async def test_a_namespace_can_be_deleted_with_its_services(
    api: Api, control_plane: Path, namespace: str, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    # Its Lease lies where it lives itself, as the chart has it: not in what is deleted.
    home = f"{namespace}-operator"
    await api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": home}})
    with running_operator(control_plane, namespace, log, "--own-namespace", home):
        await api.create(SERVICES, namespace, BODY)
        await is_made(api, namespace)
        path = f"/api/v1/namespaces/{namespace}"
        await api.request("DELETE", path)

        async def gone() -> bool:
            await api.end_pods(namespace)
            return await is_gone(api, path)

        await eventually(gone)
    told = log.read_text()
    assert "acts from now on" in told
    warnings = [line for line in told.splitlines() if "WARNING" in line]
    # On a busy machine the API server may answer too late.
    assert [line for line in warnings if "Timeout" not in line] == []
    await api.request("DELETE", f"/api/v1/namespaces/{home}")
