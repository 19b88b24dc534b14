"""`kubectl pagelet`, found by the real kubectl, against a real API server."""

import asyncio
import http.server
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pagelet.cli.kubectl.chat import talk
from pagelet.operator.kube.resources import SERVICES
from support.broken_services import service as make
from support.cluster import Api, eventually, running_operator


@pytest.fixture
def plugin(control_plane: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell where it is installed."""
    program = tmp_path / "bin" / "kubectl-pagelet"
    program.parent.mkdir()
    code = "from pagelet.cli.kubectl.main import main; main()"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    folders = [str(program.parent), str(control_plane.parent / "bin"), os.environ["PATH"]]
    return os.environ | {"PATH": ":".join(folders), "KUBECONFIG": str(control_plane)}


def kubectl(plugin: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", "pagelet", *arguments]
    return subprocess.run(command, env=plugin, check=False, capture_output=True, text=True)


async def test_status_shows_what_kubectl_get_has_no_room_for(
    api: Api, control_plane: Path, namespace: str, tmp_path: Path, plugin: dict[str, str]
) -> None:
    with running_operator(control_plane, namespace, tmp_path / "log"):
        await api.create(SERVICES, namespace, make(name="a", router={"replicas": 1}))

        async def serves() -> bool:
            await api.run_pods(namespace)
            result = await asyncio.to_thread(kubectl, plugin, "status", "-n", namespace)
            return "Serving" in result.stdout

        await eventually(serves)
        result = await asyncio.to_thread(kubectl, plugin, "status", "a", "-n", namespace)
    assert result.returncode == 0, result.stderr
    assert f"endpoint: http://a.{namespace}.svc/v1" in result.stdout
    assert {"Ready", "ModelLoaded", "Progressing"} <= set(result.stdout.split())
    pods = [line for line in result.stdout.splitlines() if line.startswith(("a-agent", "a-router"))]
    assert len(pods) == 2
    assert all("ready" in line for line in pods)


async def test_failures_are_kubectls_words(api: Api, plugin: dict[str, str]) -> None:
    async def fails_with(*arguments: str) -> str:
        result = await asyncio.to_thread(kubectl, plugin, *arguments, "--namespace", "default")
        assert result.returncode == 1
        return result.stderr

    absent = 'Error: inferenceservices.pagelet.dev "absent" not found\n'
    for command in (("status",), ("logs",), ("logs", "--router"), ("doctor",), ("chat",)):
        assert await fails_with(*command, "absent") == absent
    assert await fails_with("explain", "absent", "id") == absent


def test_a_cluster_that_cannot_be_reached_is_said_in_a_line(
    plugin: dict[str, str], tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"token": "a"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    nowhere.write_text(json.dumps(config))
    result = kubectl(plugin | {"KUBECONFIG": str(nowhere)}, "status")
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: The connection to the server 127.0.0.1:1 was refused")


async def test_a_service_that_no_operator_has_seen_is_told_of_and_points_to_its_status(
    api: Api, namespace: str, plugin: dict[str, str]
) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return kubectl(plugin, *arguments, "--namespace", namespace)

    none = await asyncio.to_thread(run, "status")
    assert (none.returncode, none.stdout) == (0, "")
    assert none.stderr == (
        f"There are no InferenceServices in the namespace {namespace}; -A shows all.\n"
    )
    await api.create(SERVICES, namespace, make(name="new"))
    shown = await asyncio.to_thread(run, "status", "new")
    assert "the operator has not seen the last change of the spec yet" in shown.stdout
    assert "it has no pods" in shown.stdout
    everywhere = await asyncio.to_thread(kubectl, plugin, "status", "-A")
    assert namespace in everywhere.stdout
    for command in (
        ("logs", "new"),
        ("logs", "new", "--loader"),
        ("doctor", "new"),
        ("explain", "new", "id"),
        ("chat", "new"),
    ):
        result = await asyncio.to_thread(run, *command)
        assert result.returncode == 1
        hint = f"see kubectl pagelet status new --namespace={namespace}\n"
        assert result.stderr.endswith(hint), result.stderr


def test_a_cluster_without_pagelet_is_told_apart(plugin: dict[str, str], tmp_path: Path) -> None:
    """By kubectl's own words, which say nothing of Pagelet."""
    said = "Unable to list: the server could not find the requested resource"
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "kubectl").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (fake / "kubectl").chmod(0o755)
    environment = plugin | {"PATH": f"{fake}:{plugin['PATH']}"}
    command = [str(tmp_path / "bin" / "kubectl-pagelet"), "status"]
    result = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert result.returncode == 1
    assert "install Pagelet with helm install" in result.stderr


class _Model(http.server.BaseHTTPRequestHandler):
    """Says how many messages it has seen, and refuses the word `no`."""

    def do_POST(self) -> None:
        body: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer key"
        if body["messages"][-1]["content"] == "no":
            self.send_response(429)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "too much"}}')
            return
        self.send_response(200)
        self.end_headers()
        for piece in (str(len(body["messages"])), " seen"):
            chunk = {"choices": [{"delta": {"content": piece}}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b'data: {"choices": []}\n\ndata: [DONE]\n\n')

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_chat_goes_on_and_survives_a_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nno\nagain\n"))
        talk(f"http://127.0.0.1:{server.server_port}", "m", "key", "be brief")
        server.shutdown()
        thread.join()
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["2 seen", "4 seen"]
    assert captured.err == "429: too much\n"
