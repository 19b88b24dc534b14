"""From records to figures. Names and definitions are those of `vllm bench serve`, so that its
results and these can be laid side by side."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pagelet.bench.load.records import Record
from pagelet.bench.load.run import RunResult

PERCENTILES = (90, 99)
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Latencies, in milliseconds, that a request must keep to count for goodput (DistServe,
    arXiv 2401.09670)."""

    ttft: float = math.inf
    tpot: float = math.inf
    e2el: float = math.inf

    def kept_by(self, record: Record) -> bool:
        """Whether a request was answered within all of them; a TPOT of one token keeps any."""
        return (
            record.ok
            and record.ttft * 1e3 <= self.ttft
            and (record.tpot or 0.0) * 1e3 <= self.tpot
            and record.e2e * 1e3 <= self.e2el
        )


def parse_bounds(parts: Sequence[str]) -> Bounds:
    """Bounds from such as `["ttft:500", "tpot:50"]`. Raises `ValueError`."""
    values = {}
    for part in " ".join(parts).replace(",", " ").split():
        name, _, text = part.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in GOODPUT_METRICS or not value > 0:
            raise ValueError(
                f"{part!r} is no bound: give {', '.join(GOODPUT_METRICS)} with milliseconds, "
                "such as ttft:500"
            )
        values[name] = value
    return Bounds(**values)


def summarise(result: RunResult, bounds: Bounds | None = None) -> dict[str, Any]:
    """Figures of a run, by the names that `docs/benchmarking.md` explains. Latencies are those of
    requests that were answered whole; nothing is NaN where there were none."""
    good = [record for record in result.records if record.ok]
    duration = max(result.duration, 1e-9)
    input_tokens = sum(record.prompt_tokens for record in good)
    output_tokens = sum(record.output_tokens for record in good)
    errors = Counter(record.error for record in result.records if record.error is not None)
    cached = [record.cached_tokens for record in good if record.cached_tokens is not None]
    figures: dict[str, Any] = {
        "duration": result.duration,
        "completed": len(good),
        "failed": len(result.records) - len(good),
        "errors": dict(errors.most_common()),
        "total_input_tokens": input_tokens,
        "total_cached_tokens": sum(cached) if cached else None,
        "total_output_tokens": output_tokens,
        "request_throughput": len(good) / duration,
        "output_throughput": output_tokens / duration,
        "total_token_throughput": (input_tokens + output_tokens) / duration,
        "max_concurrent_requests": peak_concurrency(result.records),
    }
    if bounds is not None:
        kept = sum(bounds.kept_by(record) for record in result.records)
        figures["request_goodput"] = kept / duration
        figures["good_share"] = kept / max(1, len(result.records))
    figures |= latencies(good)
    lags = [record.sent - record.due for record in result.records]
    figures["client_cpu_share"] = result.cpu_seconds / duration
    figures["p99_client_lag_ms"] = float(np.percentile(lags, 99)) * 1e3 if lags else 0.0
    labels = sorted({record.label for record in result.records} - {""})
    if labels:
        figures["by_label"] = {
            label: {"completed": len(of_label)} | latencies(of_label)
            for label in labels
            for of_label in [[record for record in good if record.label == label]]
        }
    return figures


def latencies(records: Sequence[Record]) -> dict[str, float]:
    """`mean_ttft_ms` and so on for TTFT, TPOT, ITL and E2EL; those without a value are left out."""
    series = {
        "ttft": [record.ttft for record in records],
        "tpot": [tpot for record in records if (tpot := record.tpot) is not None],
        "itl": [gap for record in records for gap in record.itl],
        "e2el": [record.e2e for record in records],
    }
    figures: dict[str, float] = {}
    for name, seconds in series.items():
        if not seconds:
            continue
        values = np.asarray(seconds) * 1e3
        figures[f"mean_{name}_ms"] = float(values.mean())
        figures[f"median_{name}_ms"] = float(np.median(values))
        figures[f"std_{name}_ms"] = float(values.std())
        for percent in PERCENTILES:
            figures[f"p{percent}_{name}_ms"] = float(np.percentile(values, percent))
    return figures


def peak_concurrency(records: Sequence[Record]) -> int:
    """Most requests in flight at one moment."""
    changes = [(record.sent, 1) for record in records] + [(record.end, -1) for record in records]
    running = peak = 0
    for _, change in sorted(changes):  # at the same moment, ends before beginnings
        running += change
        peak = max(peak, running)
    return peak
