"""A model hub on this machine: the few calls of its API that a download makes."""

import contextlib
import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


class Hub(http.server.ThreadingHTTPServer):
    """The few calls of the hub's API that a download makes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repositories = {"org/model": FILES, "org/ggufs": GGUF_FILES}
        self.downloaded: list[str] = []
        self.cut_next_download = False
        self.refuse_weights = False
        self.damage_next_download: str | None = None


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
                {"type": "file", "path": name, "size": len(data), "oid": etag(name, data)}
                for name, data in files.items()
            ]
        )

    def download(self, repo: str, name: str) -> None:
        if self.server.refuse_weights and name == "model.safetensors":
            return self.refuse(404, "EntryNotFound")
        data = self.server.repositories[repo][name]
        wanted = self.headers.get("Range")
        body = data
        if name == self.server.damage_next_download and self.command == "GET":
            self.server.damage_next_download = None
            body = bytes(len(data))
        if wanted and self.command == "GET":
            body = body[int(wanted.removeprefix("bytes=").split("-")[0]) :]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{etag(name, self.server.repositories[repo][name])}"')
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


def etag(name: str, data: bytes) -> str:
    """SHA-256 of large files, and Git's digest of small ones."""
    if name.endswith((".safetensors", ".gguf")):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that serves while the block runs."""
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def environment(home: Path, hub: Hub | None, **more: str) -> dict[str, str]:
    """For a process that asks a hub, or one that cannot be reached, and keeps files in `home`."""
    endpoint = f"http://127.0.0.1:{hub.server_port}" if hub else "http://127.0.0.1:9"
    proxies = ("http_proxy", "https_proxy", "all_proxy")
    inherited = {k: v for k, v in os.environ.items() if k.lower() not in proxies}
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return inherited | settings | more
