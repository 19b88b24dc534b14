"""The API server refuses what local mode refuses, in the same words."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from pagelet.operator.kube.client import ApiError
from pagelet.operator.kube.resources import DEPLOYMENTS, SERVICES
from pagelet.operator.plan import plan
from pagelet.protocol.inference_service.crd import custom_resource_definition
from pagelet.protocol.inference_service.load import InvalidServices, load_services, read_service
from support.broken_services import BROKEN, SOUND, Broken, service
from support.cluster import Api
from support.plans import CONTEXT
from support.strategic_merges import BASE, MERGES

_FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = {path.stem: path.read_text() for path in sorted(_FOLDER.glob("*.yaml"))}


async def test_broken_services_are_refused_in_the_same_words(api: Api, namespace: str) -> None:
    wrong = {}
    for case in BROKEN:
        with pytest.raises(ApiError) as caught:
            await api.create(SERVICES, namespace, case.body)
        if caught.value.code != 422 or not _says(caught.value.message, case):
            wrong[case.id] = caught.value.message
    assert wrong == {}


def _says(message: str, case: Broken) -> bool:
    """The API server repeats the value between the path and the words."""
    return f"{case.path}: Invalid value: " in message and f": {case.words}" in message


async def test_sound_services_are_taken(api: Api, namespace: str) -> None:
    for body in SOUND:
        await api.create(SERVICES, namespace, body)
        made = await api.service(namespace, "sound")
        # What the API server filled in is what local mode would have.
        assert read_service(made).spec == read_service(body).spec
        await api.delete(SERVICES, namespace, "sound", made["metadata"]["uid"])


@pytest.mark.parametrize("text", EXAMPLES.values(), ids=EXAMPLES.keys())
async def test_examples_are_taken_as_they_are(api: Api, namespace: str, text: str) -> None:
    for body in yaml.safe_load_all(text):
        root = "/api/v1" if body["apiVersion"] == "v1" else f"/apis/{body['apiVersion']}"
        path = f"{root}/namespaces/{namespace}/{body['kind'].lower()}s"
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        made = await api.request("POST", path, query, body)
        assert made["metadata"]["name"] == body["metadata"]["name"]


async def test_shapes_are_checked_alike(api: Api, namespace: str) -> None:
    for body in (
        service(replicas=-1),
        service(replicas="two"),
        service(resources={"cpu": -1}),
        service(resources={"memory": -(1 << 30)}),
        service(resources={"memory": "-1Gi"}),
        service(engine={"kvCache": {"memory": -1}}),
        service(rollout={"maxSurge": -1}),
        service(rollout={"maxUnavailable": "-1"}),
        service(rollout={"maxSurge": 1 << 31}),
        service(replicas=1001),
        service(router={"replicas": 1001}),
        service(canary={"weight": 1, "image": "a", "replicas": 1001}),
        service(engine={"tensorParallelSize": 257}),
        service(engine={"tensorParallelSize": 1 << 40, "pipelineParallelSize": 1 << 40}),
        service(engine={"dataParallelSize": 257}),
        service(engine={"kvCache": {"numBlocks": 10**15}}),
        service(model={"uri": "hf://org/name", "storage": {"sizeLimit": -5}}),
        service(engine={"kvCache": {"blockSize": 17}}),
        service(engine={"kvCache": {"memory": "lots"}}),
        service(engine={"maxStepSeconds": 0}),
        service(router={"boundedLoad": 1}),
        service(model={"uri": "hf://org/name", "servedNames": [" "]}),
        service(exposure={"httpRoute": {"parentRefs": []}}),
        {**service(), "spec": {}},
    ):
        with pytest.raises(ApiError):
            await api.create(SERVICES, namespace, body)
        with pytest.raises(InvalidServices):
            read_service(body)


async def test_the_definition_is_stored_as_it_is_written(api: Api) -> None:
    """Else whoever applies it after someone else, as Helm with `--take-ownership`, is told of a
    conflict."""
    ours = custom_resource_definition()
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    stored = await api.request("GET", f"{path}/{ours['metadata']['name']}")
    del stored["spec"]["conversion"]
    assert written(stored["spec"]) == written(ours["spec"])


def written(spec: object) -> str:
    """Tells 60 from 60.0."""
    return json.dumps(spec, sort_keys=True)


async def test_scale_reads_and_writes_the_replicas(api: Api, namespace: str) -> None:
    await api.create(SERVICES, namespace, service(name="scaled"))
    path = SERVICES.path(namespace, "scaled", "scale")
    scale = await api.request("GET", path)
    assert scale["spec"]["replicas"] == 1
    scale["spec"]["replicas"] = 3
    await api.request("PUT", path, body=scale)
    assert (await api.service(namespace, "scaled"))["spec"]["replicas"] == 3


async def test_strategic_merge_is_the_api_servers(api: Api, namespace: str) -> None:
    """Compared by what each patch makes of a real Deployment's pod spec."""
    labels = {"app": "merge"}
    made = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "merge", "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": BASE},
        },
    }
    await api.create(DEPLOYMENTS, namespace, made)
    path = DEPLOYMENTS.path(namespace, "merge")
    for patch, expected in MERGES:
        merged = await api.request(
            "PATCH",
            path,
            {"dryRun": "All"},
            {"spec": {"template": {"spec": patch}}},
            "application/strategic-merge-patch+json",
        )
        pod = merged["spec"]["template"]["spec"]
        for key, value in (BASE | expected).items():
            if key == "containers":
                fields = ("name", "image", "env", "workingDir")
                kept = [{k: one.get(k) for k in fields} for one in pod[key]]
                assert kept == [{k: one.get(k) or None for k in fields} for one in value], patch
            else:
                assert pod[key] == value, patch


async def test_what_the_api_server_stores_is_read_back(api: Api, namespace: str) -> None:
    text = "apiVersion: pagelet.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: a}\n"
    [loaded] = load_services(text + "spec: {model: {uri: 'package://a'}}")
    await api.create(SERVICES, namespace, service(name="a", model={"uri": "package://a"}))
    assert read_service(await api.service(namespace, "a")).spec == loaded.spec


@pytest.mark.parametrize("number", range(len(SOUND)))
async def test_what_is_planned_is_taken_as_it_is(api: Api, namespace: str, number: int) -> None:
    """No field of an object that the API server would drop, or refuse."""
    service = msgspec.structs.replace(read_service(SOUND[number]), namespace=namespace)
    for made in plan(service, CONTEXT):
        group, _, version = made["apiVersion"].rpartition("/")
        if "." in group and not group.endswith(".k8s.io"):  # kinds that are not installed here
            continue
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        kind = made["kind"].lower()
        plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
        path = f"{root}/namespaces/{namespace}/{plural}"
        await api.request("POST", path, {"dryRun": "All", "fieldValidation": "Strict"}, made)
