"""What replicas say of their options, in the words of a spec."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pagelet.cli.serve import app
from pagelet.protocol.inference_service.commands import agent_arguments
from pagelet.protocol.inference_service.load import read_service
from pagelet.protocol.inference_service.options import OPTIONS, in_fields
from pagelet.protocol.inference_service.schema import spec_schema
from pagelet.protocol.inference_service.service import InferenceService
from support.broken_services import service as body

ROOT = Path(__file__).parents[3]
SPEAKING = ("engine", "agent", "kernels", "text", "process", "cli/serve.py", "cli/serve_checks.py")
"""What a replica is made of."""
NO_FIELD = {
    "--allow-lora-updates",
    "--api-key-file",
    "--host",
    "--kv-events-endpoint",
    "--kv-events-replay-endpoint",
    "--master-addr",
    "--master-port",
    "--node-rank",
    "--port",
}
"""Options of `pagelet serve` that errors name and no spec sets."""


def make(**spec: Any) -> InferenceService:
    return read_service(body(name="service", **spec))


def served_options() -> set[str]:
    command: Any = typer.main.get_command(app)
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def spoken() -> Iterator[str]:
    """Every text of a replica's code that is no docstring."""
    for place in SPEAKING:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            tree = ast.parse(file.read_text())
            docstrings = {
                id(node.value)
                for node in ast.walk(tree)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and id(node) not in docstrings:
                    yield str(node.value)


def test_every_option_that_an_error_names_has_a_field_or_is_known_to_have_none() -> None:
    found = {option for text in spoken() for option in re.findall(r"--[a-z][a-z0-9-]+", text)}
    named = found & served_options()
    assert len(named) > 30, "the search is broken"
    known = {option.partition(" ")[0] for option in OPTIONS}
    assert named - known == NO_FIELD, "a field, or no field?"


@pytest.mark.parametrize("option", sorted(OPTIONS))
@pytest.mark.parametrize("revision", ["stable", "canary"])
def test_every_field_is_there(option: str, revision: str) -> None:
    canary = {"weight": 10, "engine": {}, "model": {"uri": "hf://org/other"}}
    said = in_fields(f"give '{option}' or not", make(canary=canary), revision)
    path = said.removeprefix("give '").removesuffix("' or not").removeprefix("no ")
    assert "--" not in path
    schema: dict[str, Any] = {"properties": {"spec": spec_schema()}}
    for step in path.split("."):
        schema = schema["properties"][step]


def test_every_setting_of_the_engine_is_behind_an_option() -> None:
    engine = spec_schema()["properties"]["engine"]["properties"]
    fields = {
        f"spec.engine.{name}"
        if name not in ("kvCache", "lora", "simulated")
        else f"spec.engine.{name}.{n}"
        for name, schema in engine.items()
        for n in schema.get("properties", [""])
    }
    told = {in_fields(option, make(), "stable") for option in OPTIONS}
    assert {field for field in told if field.startswith("spec.engine.")} == fields


def test_every_option_that_a_spec_sets_is_known() -> None:
    service = make(
        model={
            "uri": "hf://org/name",
            "tokenizer": "hf://org/other",
            "chatTemplate": {"inline": "a"},
            "adapters": [{"name": "a", "uri": "hf://org/a"}],
        },
        engine={
            "lora": {"maxLoras": 1, "maxCpuLoras": 2, "maxRank": 1},
            "maxBody": "1Mi",
            "logLevel": "debug",
            "tensorParallelSize": 2,
            "pipelineParallelSize": 2,
            "dataParallelSize": 2,
            "expertParallel": True,
            "toolCallParser": "hermes",
            "dtype": "float32",
            "quantization": "int8",
            "loadFormat": "dummy",
            "maxModelLen": 1,
            "kvCache": {
                "memory": "1Gi",
                "dtype": "int8",
                "blockSize": 32,
                "prefixCaching": False,
            },
            "maxNumSeqs": 1,
            "maxNumBatchedTokens": 1,
            "maxStepSeconds": 1,
            "schedulingPolicy": "priority",
            "asyncScheduling": False,
            "speculation": {"method": "ngram"},
            "stepTimeoutSeconds": 1,
            "maxQueue": 1,
            "runner": "simulated",
            "simulated": {"stepSeconds": 1, "tokenSeconds": 1, "contextTokenSeconds": 1},
        },
    )
    arguments = agent_arguments(
        service, service.revisions[0], host="", port=0, chat_template="/template"
    )
    options = {argument for argument in arguments if argument.startswith("--")}
    assert options - OPTIONS == {"--host", "--port"}
    assert OPTIONS - {"--device cpu", "--device cuda"} <= served_options()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "Lower --kv-cache-memory to 3 MiB or less, or lower --max-num-batched-tokens",
            "Lower spec.engine.kvCache.memory to 3 MiB or less, or lower "
            "spec.engine.maxNumBatchedTokens",
        ),
        ("Raise --cpu-share, or else", "Raise spec.resources.memory, or else"),
        ("check the driver, or give --device cpu", "check the driver, or give no spec.accelerator"),
        ("but --device cuda needs one", "but spec.accelerator needs one"),
        (
            "Invalid value for '--num-blocks': 1",
            "Invalid value for 'spec.engine.kvCache.numBlocks': 1",
        ),
        ("--max-num-seqs-of-mine and --pooled stay", "--max-num-seqs-of-mine and --pooled stay"),
        ("pip install --force-reinstall a", "pip install --force-reinstall a"),
    ],
)
def test_words_stay_and_options_become_fields(said: str, meant: str) -> None:
    assert in_fields(said, make(), "stable") == meant


def test_a_canary_is_told_of_what_it_has_of_its_own() -> None:
    said = "lower --max-model-len, give --tokenizer"
    inherits = make(canary={"weight": 10, "image": "a"})
    assert in_fields(said, inherits, "canary") == in_fields(said, inherits, "stable")
    own = make(canary={"weight": 10, "engine": {"maxQueue": 1}})
    assert in_fields(said, own, "canary") == (
        "lower spec.canary.engine.maxModelLen, give spec.model.tokenizer"
    )
