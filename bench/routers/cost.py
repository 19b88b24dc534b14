"""What a router costs: time before the first byte, processor time, memory.

Replicas' models are simulated. Processor time is that of the router's own processes, so that other
work on the machine does not change it much; latency is taken beside that of a replica without a
router, in turn.
"""

import statistics
from collections.abc import Sequence

from pagelet.bench.figures import Figure, percentile
from pagelet.bench.load.run import Load, RunResult
from pagelet.bench.load.workload import Session, Turn, Workload
from pagelet.bench.process_usage import usage_of_tree
from pagelet.bench.progress import Progress
from pagelet.bench.routers.contenders import Contender
from pagelet.bench.routers.play import running_router, send_all
from pagelet.bench.routers.replicas import Replicas
from pagelet.bench.server import Server, ServerFailed

_RATE = 100.0
_SECONDS = 5.0
_ROUNDS = 4
_STREAMS, _STREAM_TOKENS = 64, 400
_CONNECTIONS = 16
_PROMPT = " " + " ".join(["word"] * 64)
"""The same each time: new text would have to be tokenised."""


def measure(
    contender: Contender, quick: Replicas, steady: Replicas, requests: int, progress: Progress
) -> list[Figure]:
    """Figures of one router. `quick` replicas answer at once; `steady` ones take a time for each
    step, so that every token is an event of its own. Raises `ServerFailed`."""
    figures = []
    with running_router(contender, quick, progress) as router:
        progress(f"{contender.title}: latency")
        figures += _latency(contender, router, quick)
        progress(f"{contender.title}: {requests:,} requests")
        figures += _requests(contender, router, requests)
    with running_router(contender, steady, progress) as router:
        progress(f"{contender.title}: streams")
        figures += _streams(contender, router)
    return figures


def _same(count: int, max_tokens: int) -> Workload:
    return Workload("same", tuple(Session((Turn(_PROMPT, max_tokens),)) for _ in range(count)))


def _checked(result: RunResult) -> RunResult:
    for record in result.records:
        if not record.ok:
            raise ServerFailed(f"a request failed: {record.error_detail}")
    return result


def _latency(contender: Contender, router: Server, replicas: Replicas) -> list[Figure]:
    added: dict[int, list[float]] = {50: [], 99: []}
    load, workload = Load(request_rate=_RATE), _same(int(_RATE * _SECONDS), 1)
    for number in range(_ROUNDS):
        addresses = [replicas.targets[0].url, router.address]
        found = {}
        for address in addresses if number % 2 else reversed(addresses):
            result = _checked(send_all(address, workload, load))
            found[address] = [record.ttft for record in result.records]
        for percent, values in added.items():
            alone, routed = (percentile(found[address], percent) for address in addresses)
            values.append(routed - alone)
    return [
        Figure(
            contender.title,
            f"first byte later, p{percent}",
            statistics.median(values) * 1e3,
            "ms",
            target,
            "lower",
        )
        for (percent, values), target in zip(added.items(), (3.0, 10.0), strict=True)
    ]


def _requests(contender: Contender, router: Server, requests: int) -> list[Figure]:
    load = Load(concurrency=_CONNECTIONS)
    _checked(send_all(router.address, _same(max(100, requests // 10), 1), load))
    first = usage_of_tree(router.pid)
    result = _checked(send_all(router.address, _same(requests, 1), load))
    last = usage_of_tree(router.pid)
    grown = last.resident_bytes - first.resident_bytes
    return [
        Figure(contender.title, "requests/s", requests / result.duration, "requests/s"),
        _per("CPU a request", contender, (last.cpu_seconds - first.cpu_seconds) / requests, 1e3),
        Figure(contender.title, "memory", last.resident_bytes / 2**20, "MiB", better="lower"),
        Figure(
            contender.title,
            "memory grown",
            grown / 2**20,
            "MiB",
            better="lower",
        ),
    ]


def _per(name: str, contender: Contender, seconds: float, scale: float) -> Figure:
    unit = {1e3: "ms", 1e6: "µs"}[scale]
    return Figure(contender.title, name, seconds * scale, unit, better="lower")


def _streams(contender: Contender, router: Server) -> list[Figure]:
    load = Load(concurrency=_STREAMS)
    before = usage_of_tree(router.pid).cpu_seconds
    result = _checked(send_all(router.address, _same(_STREAMS, _STREAM_TOKENS), load))
    seconds = usage_of_tree(router.pid).cpu_seconds - before
    chunks = _count(result)
    return [
        _per("CPU a streamed chunk", contender, seconds / chunks, 1e6),
        Figure(contender.title, "streamed chunks/s of a core", chunks / seconds, "", 20_000),
    ]


def _count(result: RunResult) -> int:
    events: Sequence[int] = [len(record.token_times) for record in result.records]
    return sum(events)
