"""Replicas to route to, started together, and what they counted."""

import contextlib
import dataclasses
import json
import urllib.request
from collections.abc import Iterator, Sequence

from pagelet.bench.progress import Progress
from pagelet.bench.routers.contenders import Target
from pagelet.bench.server import HOST, Server, running_server

MODEL_NAME = "model"
_START_SECONDS = 300.0
_COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_hits_total",
    "vllm:generation_tokens_total",
)
"""In the order of the fields of `Counts`."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """Of one replica since its start, in tokens."""

    prompt: float
    cached: float
    generated: float

    @property
    def computed(self) -> float:
        """Its work."""
        return self.prompt - self.cached + self.generated

    def __sub__(self, before: "Counts") -> "Counts":
        return Counts(
            self.prompt - before.prompt,
            self.cached - before.cached,
            self.generated - before.generated,
        )


class Replicas:
    """Running ones."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self.targets = [_target(server.address) for server in servers]

    def counts(self) -> list[Counts]:
        """Of each replica."""
        return [_counts(server.address) for server in self._servers]


@contextlib.contextmanager
def running_replicas(
    arguments: Sequence[str], count: int, progress: Progress
) -> Iterator[Replicas]:
    """`count` times `pagelet serve ARGUMENTS`, with KV events, ready. Raises `ServerFailed`."""
    events = f"tcp://{HOST}:0"
    options = (
        *("--served-model-name", MODEL_NAME, "--log-level", "warning"),
        *("--kv-events-endpoint", events, "--kv-events-replay-endpoint", events),
    )
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(count):
            # One after the other: together they would all be slow to start on a few cores.
            server = stack.enter_context(running_server([*arguments, *options]))
            text = f"replica {number + 1} of {count} starts"
            server.wait_until_ready(_START_SECONDS, lambda _, text=text: progress(text))  # type: ignore[misc]
            servers.append(server)
        yield Replicas(servers)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def _target(url: str) -> Target:
    description = json.loads(_get(f"{url}/v1/replica"))
    (endpoint,) = description["kv_events"]["endpoints"]
    return Target(url, endpoint, description["block_size"], MODEL_NAME)


def _counts(url: str) -> Counts:
    totals = dict.fromkeys(_COUNTERS, 0.0)
    for line in _get(f"{url}/metrics").decode().splitlines():
        name = line.partition("{")[0]
        if name in totals:
            totals[name] += float(line.rpartition(" ")[2])
    return Counts(*totals.values())
