"""Replicas of several nodes against a real API server, whose pods the tests run."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagelet.operator.kube.client import ApiError, NotFound
from pagelet.operator.kube.resources import PODS, SERVICES, STATEFUL_SETS, Object
from support.broken_services import service as make
from support.cluster import Api, condition, eventually, running_operator

NAME = "large"
BODY = make(
    name=NAME,
    model={"uri": "package://a"},
    replicas=2,
    engine={"nodes": 2, "tensorParallelSize": 2},
    router={"replicas": 1},
    rollout={"maxSurge": 0, "maxUnavailable": 1},
)


@pytest.fixture(autouse=True)
def operator(api: Api, control_plane: Path, namespace: str, tmp_path: Path) -> Iterator[None]:
    log = tmp_path / "operator.log"
    with running_operator(control_plane, namespace, log, "--replica-seconds", "60"):
        yield
    assert "Traceback" not in log.read_text(), log.read_text()


async def pods_of(api: Api, namespace: str) -> dict[str, dict[str, Object]]:
    """By group and UID, without those that are to go."""
    selector = f"pagelet.dev/service={NAME},pagelet.dev/component=agent"
    pods, _ = await api.list_all(PODS, namespace, labelSelector=selector)
    groups: dict[str, dict[str, Object]] = {}
    for pod in pods:
        metadata = pod["metadata"]
        if "deletionTimestamp" not in metadata:
            group = groups.setdefault(metadata["labels"]["pagelet.dev/group"], {})
            group[metadata["uid"]] = pod
    return groups


def uids(groups: dict[str, dict[str, Object]]) -> set[str]:
    """Of all pods."""
    return {uid for pods in groups.values() for uid in pods}


async def serves(api: Api, namespace: str, replicas: int) -> dict[str, dict[str, Object]]:
    """Runs pods until all is as the spec says; the pods by group."""

    async def attempt() -> Any:
        await api.end_pods(namespace)
        await api.run_pods(namespace)
        service = await api.service(namespace, NAME)
        found = condition(service, "Progressing")
        assert found["reason"] == "Complete", found
        assert found["observedGeneration"] == service["metadata"]["generation"]
        counts = [service["status"].get(f"{kind}Replicas") for kind in ("ready", "updated")]
        assert counts == [replicas, replicas] == [service["status"]["replicas"]] * 2
        groups = await pods_of(api, namespace)
        assert sorted(map(len, groups.values())) == [2] * replicas
        return groups

    groups: dict[str, dict[str, Object]] = await eventually(attempt)
    return groups


async def evict(api: Api, namespace: str, pod: Object) -> int:
    """The status of the answer."""
    name = pod["metadata"]["name"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    try:
        await api.request("POST", path, body=body)
    except ApiError as error:
        return error.code
    return 201


async def test_a_group_is_made_drained_and_replaced_as_one(api: Api, namespace: str) -> None:
    await api.create(SERVICES, namespace, BODY)
    before = await serves(api, namespace, 2)
    names = {pod["metadata"]["name"] for pods in before.values() for pod in pods.values()}
    assert names == {f"{NAME}-agent-{group}-{node}" for group in (0, 1) for node in (0, 1)}
    service = await api.service(namespace, NAME)
    assert service["status"]["selector"].endswith("apps.kubernetes.io/pod-index=0")
    ready = condition(service, "Ready")["message"]
    assert ready.startswith("2 of 2 replicas answer"), ready

    # A node that is drained takes a pod, with which goes its group, and then none of another.
    first, second = (list(pods.values()) for pods in before.values())

    async def evicted() -> bool:
        return await evict(api, namespace, first[1]) == 201

    await eventually(evicted)  # the disruption controller counts first
    assert await evict(api, namespace, second[0]) == 429

    going_on = {pod["metadata"]["uid"] for pod in second}

    async def replaced() -> set[str]:
        # A StatefulSet may make the pod anew before the operator has seen that it is another one.
        assert uids(before) & uids(await serves(api, namespace, 2)) == going_on
        return going_on

    await eventually(replaced)

    # A pod that fails, which its StatefulSet would replace alone.
    victim = second[0]["metadata"]["name"]
    path = f"/api/v1/namespaces/{namespace}/pods/{victim}/status"
    merge = "application/strategic-merge-patch+json"
    await api.request("PATCH", path, body={"status": {"phase": "Failed"}}, content_type=merge)

    async def gone() -> bool:
        return not uids(await pods_of(api, namespace)) & going_on

    await eventually(gone)
    last = await serves(api, namespace, 2)
    assert not uids(last) & going_on, "another group in its place"

    await api.patch_service(namespace, NAME, {"replicas": 1})
    kept = await serves(api, namespace, 1)
    assert uids(kept) < uids(last)
    sets, _ = await api.list_all(STATEFUL_SETS, namespace)
    assert len(sets) == 1

    await api.patch_service(namespace, NAME, {"replicas": 3})
    await serves(api, namespace, 3)
    uid = (await api.service(namespace, NAME))["metadata"]["uid"]
    await api.delete(SERVICES, namespace, NAME, uid)

    async def nothing_is_left() -> bool:
        await api.end_pods(namespace)
        return not await api.objects(namespace, NAME) and not await pods_of(api, namespace)

    await eventually(nothing_is_left)


async def test_another_spec_makes_other_groups_one_at_a_time_and_none_is_mixed(
    api: Api, namespace: str
) -> None:
    await api.create(SERVICES, namespace, BODY)
    before = await serves(api, namespace, 2)
    await api.patch_service(namespace, NAME, {"image": "agent:2"})

    async def one_is_replaced() -> bool:
        groups = await pods_of(api, namespace)
        return len(before.keys() & groups.keys()) == 1 and len(groups) == 2

    # The new one does not become ready, so that the other stays.
    await eventually(one_is_replaced)
    await asyncio.sleep(6)
    assert await one_is_replaced()
    found = condition(await api.service(namespace, NAME), "Ready")
    assert found["status"] == "True", found
    assert "1 of 2 replicas answer" in found["message"]

    watching = asyncio.create_task(_images(api, namespace))
    after = await serves(api, namespace, 2)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert not uids(before) & uids(after)
    images = {
        pod["spec"]["containers"][0]["image"] for pods in after.values() for pod in pods.values()
    }
    assert images == {"agent:2"}


async def _images(api: Api, namespace: str) -> None:
    """Looks again and again whether all pods of a group are of one image."""
    while True:
        with contextlib.suppress(NotFound):
            for pods in (await pods_of(api, namespace)).values():
                images = {pod["spec"]["containers"][0]["image"] for pod in pods.values()}
                assert len(images) == 1
        await asyncio.sleep(0.05)
