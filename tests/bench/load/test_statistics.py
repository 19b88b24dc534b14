"""Figures of hand-made records."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.bench.load.records import Record
from pagelet.bench.load.run import RunResult
from pagelet.bench.load.statistics import (
    Bounds,
    latencies,
    parse_bounds,
    peak_concurrency,
    summarise,
)


def record(
    sent: float,
    times: list[float],
    *,
    tokens: int | None = None,
    label: str = "",
    error: str | None = None,
    cached: int | None = None,
) -> Record:
    end = times[-1] if times else sent
    count = len(times) if tokens is None else tokens
    return Record(label, sent, sent, times, 10, count, cached, end, error)


RECORDS = [
    record(0.0, [0.5, 0.6, 0.7], cached=4),
    record(1.0, [1.1, 2.1], tokens=5, cached=0),  # five tokens in two events
    record(1.5, [1.6]),
    record(2.0, [2.2], error="connection cut"),
]
RESULT = RunResult(RECORDS, duration=4.0, cpu_seconds=1.0)


def test_throughput_counts_what_was_answered_whole() -> None:
    figures = summarise(RESULT)
    assert (figures["completed"], figures["failed"]) == (3, 1)
    assert figures["errors"] == {"connection cut": 1}
    assert figures["total_input_tokens"] == 30
    assert figures["total_cached_tokens"] == 4
    assert figures["total_output_tokens"] == 9
    assert figures["request_throughput"] == 3 / 4
    assert figures["output_throughput"] == 9 / 4
    assert figures["total_token_throughput"] == 39 / 4
    assert figures["client_cpu_share"] == 0.25
    assert "request_goodput" not in figures
    assert "by_label" not in figures


def test_latencies_are_those_of_vllms_generator() -> None:
    figures = latencies(RECORDS[:3])
    ttft = np.array([500.0, 100.0, 100.0])
    assert figures["mean_ttft_ms"] == pytest.approx(ttft.mean())
    assert figures["median_ttft_ms"] == pytest.approx(100)
    assert figures["p99_ttft_ms"] == pytest.approx(np.percentile(ttft, 99))
    # (end to end - TTFT) / (tokens - 1); an answer of one token has none
    assert figures["mean_tpot_ms"] == pytest.approx((100 + 250) / 2)
    # gaps between events, of all requests together
    assert figures["mean_itl_ms"] == pytest.approx((100 + 100 + 1000) / 3)
    assert figures["mean_e2el_ms"] == pytest.approx((700 + 1100 + 100) / 3)


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        (Bounds(), 3),
        (Bounds(ttft=200), 2),
        (Bounds(tpot=200), 2),
        (Bounds(ttft=200, tpot=200), 1),
        (Bounds(e2el=800), 2),
        (Bounds(e2el=1), 0),
    ],
)
def test_goodput_counts_requests_within_all_bounds(bounds: Bounds, kept: int) -> None:
    figures = summarise(RESULT, bounds)
    assert figures["request_goodput"] == kept / 4
    assert figures["good_share"] == kept / 4  # of four requests


def test_labels_have_latencies_of_their_own() -> None:
    records = [record(0, [1.0], label="short"), record(0, [9.0, 10.0], label="long")]
    by_label = summarise(RunResult(records, 10.0, 0.1))["by_label"]
    assert by_label["short"]["mean_ttft_ms"] == 1000
    assert by_label["long"]["mean_itl_ms"] == 1000
    assert by_label["short"]["completed"] == 1


def test_requests_sent_late_are_seen() -> None:
    late = record(1.0, [2.0])
    late.due = 0.4
    assert summarise(RunResult([late], 2.0, 0.1))["p99_client_lag_ms"] == pytest.approx(600)


@pytest.mark.parametrize("records", [[], [record(0.0, [], error="timeout")]])
def test_a_run_without_answers_has_figures_that_json_can_hold(records: list[Record]) -> None:
    figures = summarise(RunResult(records, 0.0, 0.0), Bounds(ttft=1))
    assert figures["completed"] == 0
    assert figures["failed"] == len(records)
    json.dumps(figures, allow_nan=False)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted), max_size=15))
def test_the_peak_is_the_most_intervals_over_one_moment(spans: list[list[int]]) -> None:
    spans = [[start, end + 1] for start, end in spans]
    records = [record(start, [end]) for start, end in spans]
    expected = max(
        (sum(start <= moment < end for start, end in spans) for moment in range(22)), default=0
    )
    assert peak_concurrency(records) == expected


def test_bounds_are_read_with_their_names() -> None:
    assert parse_bounds(["ttft:500", "tpot:50"]) == Bounds(500, 50)
    assert parse_bounds(["ttft:500 e2el:9000"]) == Bounds(500, math.inf, 9000)


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:-1", "itl:5", "ttft:nan"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no bound"):
        parse_bounds([text])
