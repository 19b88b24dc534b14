"""What holds for the plan of any service."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.operator.plan import plan
from pagelet.operator.planning.objects import Object
from pagelet.protocol.autoscaling.demand import TARGETS
from pagelet.protocol.inference_service.load import read_service
from pagelet.protocol.router import RouterConfig
from support.broken_services import SOUND
from support.plans import CONTEXT, agent_pod, planned

CANARY = {"weight": 10, "image": "agent:2"}


def pods(objects: Iterator[Object] | list[Object]) -> Iterator[Object]:
    for made in objects:
        if made["kind"] in ("Deployment", "StatefulSet"):
            yield made["spec"]["template"]


@pytest.mark.parametrize("body", SOUND)
def test_every_container_keeps_to_the_restricted_level(body: dict[str, Any]) -> None:
    """The controls of the pod security standard `restricted`."""
    service = read_service(body)
    service.namespace = "default"
    for template in pods(plan(service, CONTEXT)):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for volume in pod["volumes"]:
            assert volume.keys() - {"name"} <= {
                "emptyDir",
                "configMap",
                "downwardAPI",
                "secret",
                "persistentVolumeClaim",
            }
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True


def test_the_grace_period_covers_the_drain_of_replicas_and_of_routers() -> None:
    for template in pods(list(planned(rollout={"drainSeconds": 100}).values())):
        pod = template["spec"]
        [container] = pod["containers"]
        pre_stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pod["terminationGracePeriodSeconds"] > 100 + pre_stop
    arguments = agent_pod(rollout={"drainSeconds": 100})["containers"][0]["args"]
    assert arguments[arguments.index("--drain-timeout") + 1] == "100"


def test_the_startup_probe_allows_for_the_load() -> None:
    [container] = agent_pod(rollout={"startupSeconds": 1234})["containers"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1234
    assert (probe["httpGet"]["path"], container["livenessProbe"]["httpGet"]["path"]) == (
        "/ready",
        "/health",
    )


def test_deployments_select_their_own_pods_alone() -> None:
    objects = planned(canary=CANARY)
    deployments = [made for made in objects.values() if made["kind"] == "Deployment"]
    assert len(deployments) == 3
    for made in deployments:
        selector = made["spec"]["selector"]["matchLabels"].items()
        chosen = [
            other["metadata"]["name"]
            for other in deployments
            if selector <= other["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert chosen == [made["metadata"]["name"]]


def test_services_and_policies_select_pods_that_are_there() -> None:
    objects = planned(canary=CANARY)
    labels = [t["metadata"]["labels"].items() for t in pods(list(objects.values()))]
    selectors = [
        made["spec"].get("selector", made["spec"].get("podSelector"))
        for made in objects.values()
        if made["kind"] in ("Service", "NetworkPolicy", "PodDisruptionBudget")
    ]
    assert len(selectors) == 3 + 2 + 3
    for selector in selectors:
        wanted = selector.get("matchLabels", selector).items()
        assert any(wanted <= there for there in labels)


def test_the_router_is_told_of_every_revisions_service() -> None:
    objects = planned(canary=CANARY, apiKeys={"name": "tenants", "key": "file"})
    text = objects["ConfigMap", "service-router"]["data"]["router.json"]
    config = msgspec.json.decode(text, type=RouterConfig)
    [route] = config.models
    assert [pool.weight for pool in route.pools] == [90, 10]
    for pool in route.pools:
        assert pool.service is not None
        assert ("Service", pool.service.name) in objects
    router = objects["Deployment", "service-router"]["spec"]["template"]["spec"]
    [keys] = [mount for mount in router["containers"][0]["volumeMounts"] if mount["name"] == "keys"]
    assert config.api_keys_file == f"{keys['mountPath']}/file"


def test_a_change_of_how_requests_are_routed_replaces_no_pod() -> None:
    before, after = planned(), planned(router={"policy": "chwbl"})
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {("ConfigMap", "service-router")}


def test_scaling_changes_one_number() -> None:
    before, after = planned(replicas=1), planned(replicas=5)
    after["Deployment", "service-agent"]["spec"]["replicas"] = 1
    assert before == after


@pytest.mark.parametrize(
    ("model", "source", "volume"),
    [
        ({"uri": "package://a"}, "package://a", None),
        ({"uri": "file:///m"}, "file:///m", None),
        (
            {"uri": "pvc://claim/a/b"},
            "/models/a/b",
            {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}},
        ),
        ({"uri": "hf://o/n", "revision": "v1"}, "hf://o/n@v1", {"emptyDir": {}}),
        (
            {"uri": "hf://o/n", "storage": {"sizeLimit": "9Gi"}},
            "hf://o/n",
            {"emptyDir": {"sizeLimit": "9Gi"}},
        ),
        (
            {"uri": "hf://o/n", "storage": {"claim": "c"}},
            "hf://o/n",
            {"persistentVolumeClaim": {"claimName": "c"}},
        ),
        (
            {"uri": "hf://o/n", "storage": {"hostPath": "/m"}},
            "hf://o/n",
            {"hostPath": {"path": "/m", "type": "DirectoryOrCreate"}},
        ),
    ],
)
def test_a_model_is_mounted_where_it_is_read(
    model: dict[str, Any], source: str, volume: dict[str, Any] | None
) -> None:
    pod = agent_pod(model=model)
    [container] = pod["containers"]
    assert container["args"][:2] == ["serve", source]
    found = {v["name"]: {k: x for k, x in v.items() if k != "name"} for v in pod["volumes"]}
    scratch = {"cache", "tmp", "shm"}
    assert [found[name] for name in found.keys() - scratch] == ([volume] if volume else [])
    mounted = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounted.keys() == found.keys()
    for name in mounted.keys() - scratch:
        assert mounted[name]["readOnly"] is True


def test_the_token_is_the_loaders_alone() -> None:
    secret = {"name": "hub", "key": "token"}
    pod = agent_pod(model={"uri": "hf://o/n", "credentialsSecret": secret, "tokenizer": "hf://o/t"})
    [loader] = pod["initContainers"]
    assert loader["args"] == ["fetch", "hf://o/n", "--tokenizer", "hf://o/t"]
    assert any(e.get("valueFrom") == {"secretKeyRef": secret} for e in loader["env"])
    assert "valueFrom" not in json.dumps(pod["containers"])
    shared = [e for e in pod["containers"][0]["env"] if e["name"] == "HF_HOME"]
    assert shared == [e for e in loader["env"] if e["name"] == "HF_HOME"]


def test_no_weights_are_downloaded_for_what_does_not_read_them() -> None:
    [loader] = agent_pod(engine={"runner": "simulated"})["initContainers"]
    assert loader["args"] == ["fetch", "hf://org/name", "--no-weights"]


def test_accelerators_are_requested_and_cpu_threads_are_not_guessed() -> None:
    gpus = {"resourceName": "amd.com/gpu", "count": 2}
    [container] = agent_pod(
        accelerator=gpus, engine={"tensorParallelSize": 2}, resources={"cpu": 8, "memory": "1Gi"}
    )["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "8", "memory": "1Gi", "amd.com/gpu": "2"},
        "limits": {"memory": "1Gi", "amd.com/gpu": "2"},
    }
    assert "--cpu-threads" not in container["args"]


def test_on_cpus_the_ranks_share_what_was_asked_for() -> None:
    [container] = agent_pod(engine={"dataParallelSize": 2}, resources={"cpu": "5500m"})[
        "containers"
    ]
    assert container["args"][-2:] == ["--cpu-threads", "2"]
    numbers = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert len(set(numbers.values())) == len(numbers) == 5


def test_without_a_prefix_cache_no_events_are_published() -> None:
    [container] = agent_pod(engine={"kvCache": {"prefixCaching": False}})["containers"]
    assert [port["name"] for port in container["ports"]] == ["http"]
    assert "--kv-events-endpoint" not in container["args"]


def test_a_pod_template_is_merged_and_cannot_take_the_pods_away() -> None:
    template = {
        "metadata": {
            "labels": {
                "pagelet.dev/service": "other",
                "app.kubernetes.io/managed-by": "Helm",
                "team": "a",
            }
        },
        "spec": {
            "priorityClassName": "high",
            "containers": [
                {"name": "agent", "env": [{"name": "EXTRA", "value": "1"}]},
                {"name": "sidecar", "image": "sidecar:1"},
            ],
        },
    }
    deployment = planned(podTemplate=template)["Deployment", "service-agent"]["spec"]
    merged = deployment["template"]
    assert merged["spec"]["priorityClassName"] == "high"
    containers = {container["name"]: container for container in merged["spec"]["containers"]}
    assert containers.keys() == {"agent", "sidecar"}
    assert {"name": "EXTRA", "value": "1"} in containers["agent"]["env"]
    assert {"name": "HOME", "value": "/tmp"} in containers["agent"]["env"]
    labels = merged["metadata"]["labels"]
    assert labels["team"] == "a"
    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    assert labels["app.kubernetes.io/managed-by"] == "pagelet-operator", "the operator sees it"


def test_exposure_makes_what_was_asked_for() -> None:
    objects = planned(
        exposure={
            "service": {"type": "NodePort", "port": 8080, "nodePort": 30080},
            "ingress": {"host": "llm.example.com", "className": "nginx", "tlsSecret": "tls"},
            "httpRoute": {"parentRefs": [{"name": "gateway", "sectionName": "https"}]},
        }
    )
    [port] = objects["Service", "service"]["spec"]["ports"]
    assert (port["port"], port["nodePort"]) == (8080, 30080)
    ingress = objects["Ingress", "service"]["spec"]
    assert ingress["tls"] == [{"hosts": ["llm.example.com"], "secretName": "tls"}]
    route = objects["HTTPRoute", "service"]["spec"]
    assert route["parentRefs"] == [{"name": "gateway", "sectionName": "https"}]
    assert route["rules"][0]["backendRefs"] == [{"name": "service", "port": 8080}]


def test_replicas_are_reached_by_router_monitoring_and_operator_alone() -> None:
    policy = planned()["NetworkPolicy", "service-agent"]["spec"]
    router, others = policy["ingress"]
    assert [port["port"] for port in router["ports"]] == [8000, 5557, 6557]
    assert [port["port"] for port in others["ports"]] == [8000]
    assert len(others["from"]) == 2
    assert all(rule["from"] for rule in policy["ingress"]), "an empty list would admit everyone"


@settings(max_examples=50)
@given(st.sampled_from(SOUND), st.from_regex(r"\A[a-z]([-a-z0-9]{0,48}[a-z0-9])?\Z"))
def test_names_fit_and_a_plan_is_a_function(body: dict[str, Any], name: str) -> None:
    service = read_service({**body, "metadata": {"name": name, "namespace": "default"}})
    objects = plan(service, CONTEXT)
    assert objects == plan(service, CONTEXT)
    for made in objects:
        metadata = made["metadata"]
        assert len(metadata["name"]) <= 63
        assert metadata["namespace"] == "default"
        assert all(len(value) <= 63 for value in metadata["labels"].values())


def scaler_of(**autoscaling: Any) -> dict[str, Object]:
    """What scales a service of such a spec, by kind."""
    objects = planned(autoscaling={"minReplicas": 2, "maxReplicas": 9} | autoscaling)
    kinds = ("ScaledObject", "HorizontalPodAutoscaler")
    return {kind: made for (kind, _), made in objects.items() if kind in kinds}


def test_a_service_has_one_autoscaler_which_sets_the_scale_of_the_service_itself() -> None:
    """Not of its Deployment: that is the operator's alone."""
    assert scaler_of() == {}  # the operator's own loop
    for engine, kind in (("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")):
        [(found, made)] = scaler_of(engine=engine).items()
        assert found == kind
        target = made["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == ("InferenceService", "service")


def test_keda_holds_the_count_where_prometheus_does_not_answer() -> None:
    spec = scaler_of(engine="keda", minReplicas=0, scaleDownSeconds=40)["ScaledObject"]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 9)
    assert spec["fallback"]["behavior"] == "currentReplicas"
    assert spec["fallback"]["replicas"] > 0
    assert spec["cooldownPeriod"] == spec["initialCooldownPeriod"] == 40
    [trigger] = spec["triggers"]
    assert trigger["metricType"] == "AverageValue"  # others have no fallback
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert trigger["metadata"]["serverAddress"] == CONTEXT.prometheus_address
    assert trigger["metadata"]["query"].startswith(
        "max(sum by (target) (pagelet_router_demand_replicas"
        '{namespace="default",service="service",pool="stable"})) or '
    )


def test_a_schedule_is_a_trigger_beside_the_demand() -> None:
    entry = {"start": "0 8 * * *", "end": "0 18 * * *", "timezone": "Asia/Tokyo", "replicas": 3}
    made = scaler_of(engine="keda", schedule=[entry], prometheusAddress="https://p:9090/x")
    demand, times = made["ScaledObject"]["spec"]["triggers"]
    assert demand["metadata"]["serverAddress"] == "https://p:9090/x"
    assert times == {
        "type": "cron",
        "metadata": {
            "timezone": "Asia/Tokyo",
            "start": "0 8 * * *",
            "end": "0 18 * * *",
            "desiredReplicas": "3",
        },
    }


def test_an_hpa_has_a_metric_for_each_target() -> None:
    spec = scaler_of(engine="hpa", scaleUpSeconds=7)["HorizontalPodAutoscaler"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 9)
    assert spec["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 7
    metrics = [metric["external"] for metric in spec["metrics"]]
    labels = [metric["metric"]["selector"]["matchLabels"] for metric in metrics]
    assert {found["target"] for found in labels} == set(TARGETS)
    assert all(metric["target"]["averageValue"] == "1" for metric in metrics)


def test_a_model_in_a_bucket_is_served_from_where_its_loader_puts_it() -> None:
    """The loader alone has the credentials."""
    model = {
        "uri": "s3://bucket/models/tiny/",
        "s3": {"endpoint": "http://minio:9000", "region": "eu-central-1"},
        "credentialsSecret": {"name": "bucket"},
    }
    pod = agent_pod(model=model)
    [loader], [agent] = pod["initContainers"], pod["containers"]
    assert loader["args"] == ["fetch", "s3://bucket/models/tiny/"]
    given = {each["name"]: each for each in loader["env"]}
    assert given["AWS_ENDPOINT_URL"]["value"] == "http://minio:9000"
    assert given["AWS_REGION"]["value"] == "eu-central-1"
    secret = given["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": "bucket", "key": "AWS_SECRET_ACCESS_KEY"}
    assert given["AWS_SESSION_TOKEN"]["valueFrom"]["secretKeyRef"]["optional"] is True
    [folder] = [mount["mountPath"] for mount in agent["volumeMounts"] if mount["name"] == "hub"]
    assert given["PAGELET_MODELS"]["value"] == folder
    assert agent["args"][1] == f"{folder}/s3/bucket/models/tiny"
    assert not [each for each in agent["env"] if each["name"].startswith(("AWS", "HF"))]

    public = agent_pod(model={"uri": "s3://bucket/a.gguf", "s3": {"anonymous": True}})
    names = {each["name"] for each in public["initContainers"][0]["env"]}
    assert "AWS_SKIP_SIGNATURE" in names
    assert "AWS_ACCESS_KEY_ID" not in names


def test_adapters_are_loaded_with_the_model_and_served_from_there() -> None:
    adapters = [
        {"name": "hub", "uri": "hf://org/sql", "revision": "v1"},
        {"name": "bucket", "uri": "s3://bucket/legal"},
        {"name": "claim", "uri": "pvc://adapters/support/latest"},
        {"name": "same", "uri": "pvc://weights/adapters/same"},
        {"name": "image", "uri": "file:///adapters/image"},
    ]
    pod = agent_pod(model={"uri": "pvc://weights/base", "adapters": adapters})
    [loader], [agent] = pod["initContainers"], pod["containers"]
    assert loader["args"] == [
        "fetch",
        *("--adapter", "hf://org/sql@v1"),
        *("--adapter", "s3://bucket/legal"),
    ]
    claims = {
        volume["persistentVolumeClaim"]["claimName"]: volume["name"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    places = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert len(set(places.values())) == len(agent["volumeMounts"])
    arguments = agent["args"]
    assert arguments[1] == f"{places[claims['weights']]}/base"
    given = [
        arguments[i + 1].partition("=")
        for i, argument in enumerate(arguments)
        if argument == "--lora-modules"
    ]
    assert {name: source for name, _, source in given} == {
        "hub": "hf://org/sql@v1",
        "bucket": f"{places['hub']}/s3/bucket/legal",
        "claim": f"{places[claims['adapters']]}/support/latest",
        "same": f"{places[claims['weights']]}/adapters/same",
        "image": "file:///adapters/image",
    }


def test_another_chat_template_is_another_pod_and_each_reads_its_own() -> None:
    def template(text: str) -> Object:
        model = {"uri": "hf://org/name", "chatTemplate": {"inline": text}}
        made: Object = planned(model=model)["Deployment", "service-agent"]["spec"]["template"]
        return made

    one, other = template("{{ 1 }}"), template("{{ 2 }}")
    assert one != other
    [volume] = [v for v in one["spec"]["volumes"] if v["name"] == "chat-template"]
    [item] = volume["downwardAPI"]["items"]
    annotation = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['")
    assert one["metadata"]["annotations"][annotation.removesuffix("']")] == "{{ 1 }}"
    [agent] = one["spec"]["containers"]
    [mount] = [m for m in agent["volumeMounts"] if m["name"] == "chat-template"]
    file = agent["args"][agent["args"].index("--chat-template") + 1]
    assert file == f"{mount['mountPath']}/{item['path']}"


def test_a_chat_template_of_a_config_map_is_one_of_its_entries() -> None:
    key = {"name": "templates", "key": "chat.jinja"}
    pod = agent_pod(model={"uri": "hf://org/name", "chatTemplate": {"configMap": key}})
    [volume] = [v for v in pod["volumes"] if v["name"] == "chat-template"]
    [item] = volume["configMap"]["items"]
    assert (volume["configMap"]["name"], item["key"]) == ("templates", "chat.jinja")
    assert pod["containers"][0]["args"][-1] != "--chat-template"
    assert any(argument.endswith(f"/{item['path']}") for argument in pod["containers"][0]["args"])
