"""What people get to see of a run."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from pagelet.bench.load import report
from pagelet.bench.load.command import show
from pagelet.bench.load.records import Record
from pagelet.bench.load.run import RunResult
from pagelet.bench.load.statistics import Bounds, summarise


def records() -> list[Record]:
    times = [[0.5, 0.6, 0.7], [0.4, 0.9], [0.3]]
    return [
        Record("", 0.0, index / 10, [index / 10 + t for t in seen], 10, len(seen), 5, 1.5)
        for index, seen in enumerate(times)
    ]


def shown(result: RunResult, bounds: Bounds | None = None) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    show(console, summarise(result, bounds))
    return " ".join(console.export_text().split())


def test_a_run_fits_on_a_screen() -> None:
    text = shown(RunResult(records(), 2.0, 0.1), Bounds(ttft=450))
    assert "3 of 3 requests in 2.00 s, at most 3 at once" in text
    assert "1.50 requests/s, 3.0 output tokens/s, 18.0 tokens/s in all" in text
    assert "goodput 1.00 requests/s: 66.7 % kept the bounds" in text
    assert "50.0 % of prompt tokens came from the prefix cache" in text
    assert "time to first token, ms 400.00 400.00 480.00 498.00" in text
    assert "beware: requests were sent up to 198 ms late" in text


def test_a_busy_generator_and_failures_are_told() -> None:
    failed = Record("", 0.0, 0.0, [], 0, 0, None, 1.0, "HTTP 429 Too Many Requests")
    text = shown(RunResult([*records(), failed, failed], 2.0, 1.9))
    assert "3 of 5 requests" in text
    assert "beware: 2 failed: HTTP 429 Too Many Requests" in text
    assert "used 95 % of a core" in text


def test_a_run_without_answers_is_shown_too() -> None:
    failed = Record("", 0.0, 0.0, [], 0, 0, None, 1.0, "timeout")
    assert "0 of 1 requests" in shown(RunResult([failed], 2.0, 0.1))


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_plot_is_an_image(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / "new" / f"plot{suffix}"
    report.check_plotting()
    report.plot(records(), "a run", path)
    assert path.read_bytes().startswith(magic)


def test_events_over_time_are_all_there() -> None:
    (middles, rates), (moments, in_flight) = report.over_time(records(), bins=10)
    width = middles[1] - middles[0]
    assert sum(rates) * width == pytest.approx(6)
    assert moments == sorted(moments)
    assert max(in_flight) == 3
    assert in_flight[-1] == 0
