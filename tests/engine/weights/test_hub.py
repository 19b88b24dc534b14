"""The real hub client against a hub on this machine, in processes of their own: the client reads
its environment when it is imported."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * 12_000
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"template",
    "model.safetensors": WEIGHTS,
    "README.md": b"not needed",
    "pytorch_model.bin": b"not needed",
    "consolidated.safetensors": b"not needed",
    "original/params.json": b"not needed",
}
GGUF_FILES = {"a-Q4_0.gguf": b"GGUF" * 1000, "a-Q8_0.gguf": b"GGUF" * 2000}
SCRIPT = """
import json, sys
from pagelet.engine.source import resolve
from pagelet.protocol.errors import ModelSourceError
calls = []
weights = "tokenizer" not in sys.argv
try:
    files = resolve(sys.argv[1], lambda *call: calls.append(call), weights=weights)
    names = sorted(p.name for p in files.path.iterdir()) if files.path.is_dir() else []
    print(json.dumps({"path": str(files.path), "name": files.name, "files": names, "calls": calls}))
except ModelSourceError as error:
    print(json.dumps({"error": str(error)}))
"""


class Hub(http.server.ThreadingHTTPServer):
    """The few calls of the hub's API that a download makes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repositories = {"org/model": FILES, "org/ggufs": GGUF_FILES}
        self.downloaded: list[str] = []
        self.cut_next_download = False
        self.refuse_weights = False


class HubHandler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.describe("/".join(parts[2:4]), parts[4], parts[5])
        else:
            self.download("/".join(parts[:2]), "/".join(parts[4:]))

    def describe(self, repo: str, kind: str, revision: str) -> None:
        if repo == "org/gated":
            return self.refuse(403, "GatedRepo")
        if repo not in self.server.repositories:
            return self.refuse(401, "RepoNotFound")
        if revision not in ("main", "v1", COMMIT):
            return self.refuse(404, "RevisionNotFound")
        files = self.server.repositories[repo]
        if kind == "revision":
            siblings = [{"rfilename": name} for name in files]
            return self.answer({"id": repo, "sha": COMMIT, "siblings": siblings})
        return self.answer(
            [
                {"type": "file", "path": name, "size": len(data), "oid": etag(data)}
                for name, data in files.items()
            ]
        )

    def download(self, repo: str, name: str) -> None:
        if self.server.refuse_weights and name == "model.safetensors":
            return self.refuse(404, "EntryNotFound")
        data = self.server.repositories[repo][name]
        wanted = self.headers.get("Range")
        body = data
        if wanted and self.command == "GET":
            body = data[int(wanted.removeprefix("bytes=").split("-")[0]) :]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{etag(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "HEAD":
            return None
        self.server.downloaded.append(name)
        if self.server.cut_next_download and name == "model.safetensors":
            self.server.cut_next_download = False
            body = body[: len(body) // 2]
        self.wfile.write(body)
        return None

    def answer(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def resolve_in_process(source: str, home: Path, hub: Hub | None, *flags: str, **env: str) -> Any:
    endpoint = f"http://127.0.0.1:{hub.server_port}" if hub else "http://127.0.0.1:9"
    proxies = ("http_proxy", "https_proxy", "all_proxy")
    inherited = {k: v for k, v in os.environ.items() if k.lower() not in proxies}
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, source, *flags],
        env=inherited | settings | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_only_what_is_needed_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    needed = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    first = resolve_in_process("hf://org/model", tmp_path, hub)
    assert first["files"] == needed
    assert first["name"] == "org/model"
    assert sorted(hub.downloaded) == needed
    assert Path(first["path"], "model.safetensors").read_bytes() == WEIGHTS
    done = [call[0] for call in first["calls"]]
    assert done == sorted(done)
    assert first["calls"][-1] == [sum(len(FILES[name]) for name in needed)] * 2

    hub.downloaded.clear()
    again = resolve_in_process("hf://org/model@v1", tmp_path, hub)
    assert again["path"] == first["path"]
    assert not hub.downloaded

    # And without a connection, or when told not to use it.
    assert resolve_in_process("hf://org/model", tmp_path, None)["path"] == first["path"]
    offline = resolve_in_process("hf://org/model", tmp_path, None, HF_HUB_OFFLINE="1")
    assert offline["path"] == first["path"]


def test_cut_connection_is_mended(hub: Hub, tmp_path: Path) -> None:
    hub.cut_next_download = True
    found = resolve_in_process("hf://org/model", tmp_path, hub)
    assert Path(found["path"], "model.safetensors").read_bytes() == WEIGHTS
    assert hub.downloaded.count("model.safetensors") == 2


def test_failed_download_keeps_what_is_complete(hub: Hub, tmp_path: Path) -> None:
    hub.refuse_weights = True
    error = resolve_in_process("hf://org/model", tmp_path, hub)["error"]
    assert "the download failed" in error
    assert "run it again" in error
    hub.refuse_weights = False
    hub.downloaded.clear()
    found = resolve_in_process("hf://org/model", tmp_path, hub)
    assert hub.downloaded == ["model.safetensors"]
    assert Path(found["path"], "model.safetensors").read_bytes() == WEIGHTS


def test_tokenizer_without_weights(hub: Hub, tmp_path: Path) -> None:
    found = resolve_in_process("hf://org/model", tmp_path, hub, "tokenizer")
    assert found["files"] == ["chat_template.jinja", "config.json", "tokenizer.json"]


def test_one_file_of_a_repository_of_gguf_files(hub: Hub, tmp_path: Path) -> None:
    found = resolve_in_process("hf://org/ggufs/a-Q4_0.gguf", tmp_path, hub)
    assert Path(found["path"]).read_bytes() == GGUF_FILES["a-Q4_0.gguf"]
    assert hub.downloaded == ["a-Q4_0.gguf"]
    whole = resolve_in_process("hf://org/ggufs", tmp_path, hub)
    assert "name one: hf://org/ggufs/FILE.gguf" in whole["error"]
    other = resolve_in_process("hf://org/ggufs/b.gguf", tmp_path, hub)
    assert other["error"] == "hf://org/ggufs/b.gguf: org/ggufs has no file b.gguf"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf://org/absent", "no such repository, or a private one"),
        ("hf://org/gated", "accept the model's terms"),
        ("hf://org/model@v9", "no such branch, tag or commit"),
    ],
)
def test_refusals_say_what_to_do(source: str, message: str, hub: Hub, tmp_path: Path) -> None:
    error = resolve_in_process(source, tmp_path, hub)["error"]
    assert error.startswith(f"{source}: ")
    assert message in error
    if "branch" not in message:
        assert "HF_TOKEN" in error


def test_no_connection(tmp_path: Path) -> None:
    error = resolve_in_process("hf://org/model", tmp_path, None)["error"]
    assert "the hub can't be reached; check the connection (HF_ENDPOINT" in error
    error = resolve_in_process("hf://org/model", tmp_path, None, HF_HUB_OFFLINE="1")["error"]
    assert "unset HF_HUB_OFFLINE" in error
