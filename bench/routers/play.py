"""One run: a router in front of the replicas, a trace through it, and what came of it."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence

import uvloop

from pagelet.bench.figures import percentile
from pagelet.bench.load.run import Load, RunResult, run_completions
from pagelet.bench.load.workload import Session, Turn, Workload
from pagelet.bench.progress import Progress
from pagelet.bench.routers.contenders import Contender
from pagelet.bench.routers.replicas import MODEL_NAME, Counts, Replicas
from pagelet.bench.routing.traces import WARM_UP
from pagelet.bench.server import Server, ServerFailed, free_port, running_command

_START_SECONDS = 120.0
_ANSWER_SECONDS = 300.0
_SETTLE_SECONDS = 2.0
"""For a router's first look at its replicas, and its subscriptions."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one run, or medians over several. Times are in seconds, and of requests after the trace's
    warm-up, as those of the simulator are."""

    hit_rate: float
    """Share of the prompts' tokens that replicas found in their caches."""
    ttft_p50: float
    ttft_p99: float
    goodput: float
    """Share of the requests whose first token came in time."""
    imbalance: float
    """Most tokens that a replica computed, over the mean."""
    failed: float
    """Requests, of the warm-up too."""
    client_lag_p99: float
    """By which requests were sent late: more than some milliseconds, and the machine was too busy
    to measure anything."""


@contextlib.contextmanager
def running_router(
    contender: Contender, replicas: Replicas, progress: Progress
) -> Iterator[Server]:
    """A router that has sent requests to its replicas. Raises `ServerFailed`."""
    port = free_port()
    command = contender.command(port, replicas.targets)
    with running_command(command, port, contender.ready_path) as server:
        server.wait_until_ready(_START_SECONDS, lambda _: progress(f"{contender.title} starts"))
        _warm_up(server, 4 * len(replicas.targets))
        yield server


def _warm_up(server: Server, count: int) -> None:
    """Until answers come, since routers may say that they are ready before they know a replica."""
    sessions = [Session((Turn(f"{time.time()} {number}", 2),)) for number in range(count)]
    deadline = time.monotonic() + _START_SECONDS
    while True:
        result = send_all(server.address, Workload("warm-up", tuple(sessions)), Load(concurrency=4))
        if all(record.ok for record in result.records):
            break
        if time.monotonic() > deadline:
            error = next(record.error_detail for record in result.records if not record.ok)
            raise ServerFailed(f"the router does not answer: {error}\n{server.last_lines(30)}")
        time.sleep(_SETTLE_SECONDS)
    time.sleep(_SETTLE_SECONDS)


def send_all(address: str, workload: Workload, load: Load) -> RunResult:
    """Sends a workload of texts to `/v1/completions`."""
    return uvloop.run(run_completions(address, MODEL_NAME, workload, load, _ANSWER_SECONDS))


def play(
    contender: Contender,
    replicas: Replicas,
    workload: Workload,
    ttft_bound: float,
    progress: Progress,
) -> Figures:
    """Runs a timed workload through a freshly started router."""
    with running_router(contender, replicas, progress) as router:
        before = replicas.counts()
        progress(f"{contender.title}: {workload.name}")
        result = send_all(router.address, workload, Load())
        after = replicas.counts()
    counts = [late - early for early, late in zip(before, after, strict=True)]
    return figures_of(result, counts, workload.num_requests, ttft_bound)


def figures_of(
    result: RunResult, counts: Sequence[Counts], num_requests: int, ttft_bound: float
) -> Figures:
    """What came of a trace, sent as `result` tells; `counts` are those of the replicas."""
    measured = [record for record in result.records if record.due >= WARM_UP]
    ttfts = [record.ttft for record in measured if record.ok] or [float("inf")]
    computed = [each.computed for each in counts]
    return Figures(
        hit_rate=sum(each.cached for each in counts)
        / max(1.0, sum(each.prompt for each in counts)),
        ttft_p50=percentile(ttfts, 50),
        ttft_p99=percentile(ttfts, 99),
        goodput=sum(ttft <= ttft_bound for ttft in ttfts) / max(1, len(measured)),
        imbalance=max(computed) / max(1.0, statistics.fmean(computed)),
        failed=num_requests - sum(record.ok for record in result.records),
        client_lag_p99=percentile([each.sent - each.due for each in measured] or [0.0], 99),
    )
