"""What is told of a run."""

from pagelet.bench.load.records import Record
from pagelet.bench.load.run import RunResult
from pagelet.bench.routers.play import figures_of
from pagelet.bench.routers.replicas import Counts
from pagelet.bench.routing.traces import WARM_UP


def record(due: float, ttft: float, *, error: str | None = None) -> Record:
    return Record("", due, due + 0.01, [due + 0.01 + ttft], 8, 1, 0, due + 1, error)


def test_times_are_those_after_the_warm_up_and_no_failure_is_hidden() -> None:
    records = [
        record(WARM_UP - 1, 9.0),
        record(WARM_UP - 1, 9.0, error="refused"),
        record(WARM_UP, 0.25),
        record(WARM_UP + 1, 0.5),
        record(WARM_UP + 2, 3.0),
        record(WARM_UP + 3, 0.1, error="refused"),
    ]
    counts = [Counts(prompt=80, cached=60, generated=10), Counts(prompt=40, cached=30, generated=0)]
    figures = figures_of(RunResult(records, 20.0, 1.0), counts, len(records), ttft_bound=1.0)
    assert figures.ttft_p50 == 0.5
    assert figures.ttft_p99 <= 3.0
    assert figures.goodput == 2 / 4
    assert figures.failed == 2
    assert figures.hit_rate == 90 / 120
    assert figures.imbalance == 30 / 20
