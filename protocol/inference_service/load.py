"""InferenceServices from YAML, as `pagelet up -f` reads it: what the API server would refuse is
refused here, with file, line, path, value and what would be right."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import yaml

from pagelet.protocol.inference_service import rules
from pagelet.protocol.inference_service.kind import API_VERSION, KIND
from pagelet.protocol.inference_service.kubectl_yaml import (
    MOST_NODES,
    KubectlLoader,
    TooManyNodes,
)
from pagelet.protocol.inference_service.schema import Schema, spec_schema
from pagelet.protocol.inference_service.secrets import read_secret
from pagelet.protocol.inference_service.service import InferenceService, ServiceSpec
from pagelet.protocol.inference_service.validate import Path, Problem, validate
from pagelet.protocol.yaml_fault import wrong_tag, yaml_fault

_METADATA: Final[Schema] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "x-kubernetes-preserve-unknown-fields": True,
}

_METADATA_FIELDS: Final = frozenset(
    (
        *("name", "generateName", "namespace", "labels", "annotations", "finalizers"),
        *("ownerReferences", "uid", "resourceVersion", "generation", "creationTimestamp"),
        *("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"),
    )
)
"""Of Kubernetes. An API server of the future may have more, but not a file for the present one."""
_LISTS: Final = ("List", f"{KIND}List")
_PAIR: Final = re.compile(
    r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_MARK: Final = re.compile("^\ufeff", re.MULTILINE)
_MOST_VALUES: Final = 200_000
"""Of a document with its aliases written out, which a few lines can make endless."""
_ENTRIES: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_OF_KIND: Final[Mapping[str, Mapping[str, Schema]]] = {
    "Secret": {"metadata": _METADATA, "data": _ENTRIES, "stringData": _ENTRIES},
    "ConfigMap": {"metadata": _METADATA, "data": _ENTRIES},
}


class InvalidServices(ValueError):
    """What is wrong with a file of InferenceServices: a line for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a YAML file asks for."""

    services: list[InferenceService]
    secrets: Mapping[str, Mapping[str, bytes]]
    """Of each Secret in the file, by name: its entries."""
    config_maps: Mapping[str, Mapping[str, str]]
    """Likewise of each ConfigMap."""
    locate: Callable[[InferenceService, Problem], str]
    """A problem of one of the services in words, with its file, line and path before them."""


def load_services(text: str, name: str = "services") -> list[InferenceService]:
    """The InferenceServices of a YAML text of any number of documents; objects of other kinds are
    passed over. `name` is the file's, for messages. Raises InvalidServices with all problems."""
    return load_manifest(text, name).services


def load_manifest(text: str, name: str = "services") -> Manifest:
    """As `load_services`, with the file's Secrets and ConfigMaps, which services may name."""
    problems: list[str] = []
    services: dict[str, InferenceService] = {}
    documents: dict[str, _Document] = {}
    secrets: dict[str, Mapping[str, bytes]] = {}
    config_maps: dict[str, Mapping[str, str]] = {}
    for document in _documents(text, name):
        found = list(document.problems())
        if not found and document.value["kind"] == KIND:
            service = document.service()
            found = [Problem(*problem) for problem in rules.violations(service)]
            if service.name in services:
                found.append(Problem(("metadata", "name"), "stands twice in this file"))
            services[service.name] = service
            documents[service.name] = document
        elif not found and document.value["kind"] == "Secret":
            metadata = document.value.get("metadata") or {}
            try:
                secrets[str(metadata.get("name"))] = read_secret(document.value)
            except ValueError as error:
                found = [Problem(("data",), f"is not base64: {error}; stringData takes text")]
        elif not found and document.value["kind"] == "ConfigMap":
            metadata = document.value.get("metadata") or {}
            config_maps[str(metadata.get("name"))] = document.value.get("data") or {}
        problems += [document.locate(problem, name) for problem in found]
    if not problems and not services:
        problems = [f"{name}: holds no InferenceService (apiVersion: {API_VERSION}, kind: {KIND})"]
    if problems:
        raise InvalidServices(problems)

    def locate(service: InferenceService, problem: Problem) -> str:
        return documents[service.name].locate(problem, name)

    return Manifest(list(services.values()), secrets, config_maps, locate)


def read_service(body: Mapping[str, Any]) -> InferenceService:
    """An InferenceService as the API server has it. Raises InvalidServices with all problems, as
    for an object from before a rule was there."""
    problems = list(_problems_of_service(body))
    if not problems:
        service = _convert(body)
        problems = [Problem(*problem) for problem in rules.violations(service)]
        if not problems:
            return service
    raise InvalidServices([str(problem) for problem in problems])


def _convert(body: Mapping[str, Any]) -> InferenceService:
    metadata = body["metadata"]
    return InferenceService(
        name=metadata["name"],
        namespace=metadata.get("namespace"),
        spec=msgspec.convert(_without_nulls(body["spec"], spec_schema()), ServiceSpec),
    )


def _problems_of_service(body: Mapping[str, Any]) -> Iterator[Problem]:
    for field in body.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        path = (str(field),)
        yield Problem(path, "there is no such field; the service is described in spec")
    yield from validate(body.get("metadata") or {}, _METADATA, ("metadata",))
    spec = body.get("spec")
    if spec is None:
        yield Problem(("spec",), "is missing")
    else:
        yield from validate(spec, spec_schema(), ("spec",))


def _without_nulls(value: Any, schema: Schema) -> Any:
    """A null is a field left out, also for `msgspec`; but in a patch it takes a field away."""
    if isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        of = schema.get("properties", {})
        return {
            name: _without_nulls(item, of.get(name) or schema["additionalProperties"])
            for name, item in value.items()
            if item is not None
        }
    if isinstance(value, list) and "items" in schema:
        return [_without_nulls(item, schema["items"]) for item in value]
    return value


@dataclasses.dataclass(frozen=True)
class _Document:
    value: dict[str, Any]
    node: yaml.Node

    def line(self, path: Path) -> int:
        """Where the value at a path, or the nearest one around it, begins."""
        node = self.node
        line = node.start_mark.line
        for step in path:
            if isinstance(node, yaml.MappingNode):
                entries = {key.value: (key, value) for key, value in node.value}
                if step not in entries:
                    break
                key, node = entries[step]
                line = key.start_mark.line
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                node = node.value[step]
                line = node.start_mark.line
        return line + 1

    def locate(self, problem: Problem, name: str) -> str:
        """A problem with its place in the file of that name."""
        return f"{name}:{self.line(problem.path)}: {problem}"

    def problems(self) -> Iterator[Problem]:
        """Of its shape."""
        version, kind = self.value.get("apiVersion"), self.value.get("kind")
        group = str(version).partition("/")[0]
        if group == API_VERSION.partition("/")[0]:
            if self.value["apiVersion"] != API_VERSION:
                words = f"{_given(version)}; this version of Pagelet reads {API_VERSION}"
                yield Problem(("apiVersion",), words)
            if kind != KIND:
                yield Problem(("kind",), f"{_given(kind)}; write {KIND}")
            yield from _problems_of_service(self.value)
            metadata = self.value.get("metadata")
            if isinstance(metadata, dict):
                for field in metadata.keys() - _METADATA_FIELDS:
                    yield Problem(("metadata", str(field)), "there is no such field of metadata")
        elif kind == KIND:
            yield Problem(("apiVersion",), f"{_given(version)}; write {API_VERSION}")
        elif isinstance(kind, str) and kind in _OF_KIND:
            for field, schema in _OF_KIND[kind].items():
                if self.value.get(field) is not None:
                    yield from validate(self.value[field], schema, (field,))
        elif not kind:
            yield Problem(("kind",), f"is missing; write kind: {KIND}")

    def service(self) -> InferenceService:
        return _convert(self.value)


def _objects(document: _Document, name: str) -> Iterator[_Document]:
    """The objects of a list, as `kubectl get -o yaml` writes several; else the document itself."""
    if document.value.get("kind") not in _LISTS:
        yield document
        return
    assert isinstance(document.node, yaml.MappingNode)
    nodes = next((value for key, value in document.node.value if key.value == "items"), None)
    items = document.value.get("items")
    if not isinstance(items, list) or not isinstance(nodes, yaml.SequenceNode):
        words = "is missing" if items is None else "takes a list"
        raise InvalidServices([document.locate(Problem(("items",), words), name)])
    for index, (item, node) in enumerate(zip(items, nodes.value, strict=True)):
        if not isinstance(item, dict):
            raise InvalidServices(
                [document.locate(Problem(("items", index), "takes a mapping"), name)]
            )
        yield from _objects(_Document(item, node), name)


def _given(value: Any) -> str:
    return "is missing" if value is None else f"is {value}"


def _plain(text: str) -> str:
    """Without what JSON and files of some systems have, and YAML does not: characters as two
    escapes, and byte order marks before documents that were joined."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        text = _PAIR.sub(lambda pair: pair[1] + json.loads(f'"{pair[2]}"'), text)
    return _MARK.sub("", text)


def _documents(text: str, name: str) -> Iterator[_Document]:
    text = _plain(text)
    if (wrong := yaml.reader.Reader.NON_PRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, wrong.start()) + 1
        words = f"the character U+{ord(wrong[0]):04X} may not stand in it"
        raise InvalidServices([f"{name}:{line}: is no YAML: {words}"])
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            _check_nodes(node, name, {})
            value = loader.construct_document(node)
            if value is None:
                continue
            if not isinstance(value, dict):
                line = node.start_mark.line + 1
                raise InvalidServices([f"{name}:{line}: a document must be a mapping"])
            yield from _objects(_Document(value, node), name)
    except TooManyNodes:
        words = f"holds more than {MOST_NODES:,} names and values; write fewer"
        raise InvalidServices([f"{name}: {words}"]) from None
    except RecursionError as error:  # brackets without end, or an alias of what it stands in
        raise InvalidServices([f"{name}: is nested too deeply, or in itself"]) from error
    except yaml.MarkedYAMLError as error:
        raise InvalidServices([yaml_fault(name, error)]) from error
    finally:
        loader.dispose()


class _Loader(KubectlLoader):
    """Says where a value is that is not of its tag, such as `!!int one`."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError):
            raise wrong_tag(node) from None


def _check_nodes(node: yaml.Node, name: str, sizes: dict[int, int]) -> int:
    """How many values a node stands for; `sizes` has those of nodes that were seen, by `id`.

    Raises InvalidServices if they are too many, and for what YAML readers pass over: of two equal
    keys they keep the last without a word.
    """
    if id(node) in sizes:
        return sizes[id(node)]
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        _refuse_duplicates(node, name)
    children = node.value if isinstance(node, yaml.CollectionNode) else ()
    if isinstance(node, yaml.MappingNode):
        children = [value for _, value in children]
    size = 1 + sum(_check_nodes(child, name, sizes) for child in children)
    if size > _MOST_VALUES:
        words = f"holds more than {_MOST_VALUES:,} values, with its aliases written out"
        raise InvalidServices([f"{name}:{line}: {words}; write fewer"])
    sizes[id(node)] = size
    return size


def _refuse_duplicates(node: yaml.MappingNode, name: str) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidServices([f"{name}:{line}: a field's name must be a text"])
        if key.value in seen:
            words = f"{key.value} stands here and in line {seen[key.value]}; keep one"
            raise InvalidServices([f"{name}:{line}: {words}"])
        seen[key.value] = line
