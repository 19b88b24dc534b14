"""The official `openai` client of npm against real servers. It is installed into a cache folder;
the test is skipped only where that cannot be done."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from .real_engine import replica, simulated
from .test_pooling import options, save

VERSION = "6.49.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagelet-tests"
CLIENT = Path(__file__).with_name("npm_client.mjs")
SCHEMA = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["unit", "days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def module():
    """The client's module, installed if it is not yet."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs node and npm")
    folder = CACHE / f"openai-npm-{VERSION}"
    module = folder / "node_modules/openai/index.mjs"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ("--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder)
        command = [npm, "install", *options, f"openai@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        if done.returncode:
            unreachable = ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN", "ECONNRESET")
            assert any(code in done.stderr for code in unreachable), done.stderr
            pytest.skip("no registry of npm can be reached")
        (folder / "installed").touch()
    return module


@pytest.fixture(scope="module")
def got(module, tmp_path_factory):
    """What the client got."""
    folder = tmp_path_factory.mktemp("embedding")
    save("Qwen3Model", folder)
    with (
        replica(simulated(), tool_call_parser="hermes") as generating,
        replica(options(folder)) as embedding,
    ):
        done = subprocess.run(
            ["node", CLIENT, module, generating.url, embedding.url],
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_models(got):
    assert got["models"] == ["tiny"]
    assert got["model"] == "tiny"


def test_chat_streams_what_it_answers(got):
    chat = got["chat"]
    assert chat["whole"] == chat["deltas"] == chat["final"] != ""
    assert chat["usages"] == chat["logprobs"] == [30, 30]
    assert chat["finish"] == ["length", "length"]


def test_completions_stream_what_they_answer(got):
    completions = got["completions"]
    assert completions["whole"] == completions["streamed"]
    assert len(set(completions["whole"])) == 4


def test_responses_stream_what_they_answer(got):
    responses = got["responses"]
    assert responses["whole"] == responses["streamed"] != ""
    assert {"response.created", "response.output_text.delta", "response.incomplete"} <= set(
        responses["kinds"]
    )


def test_tools(got):
    tools = got["tools"]
    assert tools["finish"] == "tool_calls"
    assert tools["required"] == tools["streamed"]
    for name, arguments in tools["required"] + tools["named"]:
        assert name in ("weather", "forecast")
        jsonschema.validate(json.loads(arguments), SCHEMA)
    assert [name for name, _ in tools["named"]] == ["forecast"]
    assert tools["ran"], "the client's runner called no tool"
    for arguments in tools["ran"]:
        jsonschema.validate(arguments, SCHEMA)


def test_structured_output(got):
    assert type(got["parsed"]["a"]) is bool


def test_embeddings_are_the_same_packed_and_plain(got):
    packed, plain = (np.array(vectors) for vectors in got["embeddings"])
    assert packed.shape == (2, 32)
    np.testing.assert_allclose(packed, plain, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(packed, axis=1), 1, atol=1e-5)


def test_errors_are_the_clients_own(got):
    assert got["errors"] == [
        ["NotFoundError", 404, "model_not_found", "model"],
        ["BadRequestError", 400, "invalid_value", "messages"],
        ["BadRequestError", 400, "context_length_exceeded", "max_tokens"],
        ["BadRequestError", 400, "invalid_value", None],
    ]
