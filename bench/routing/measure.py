"""Figures of simulated runs."""

import dataclasses
import statistics
from collections.abc import Sequence

from pagelet.bench.routing.simulate import Run
from pagelet.bench.routing.traces import WARM_UP


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one run, or medians over the runs of several seeds."""

    hit_rate: float
    """Share of prompt tokens that were cached."""
    ttft_p50: float
    ttft_p99: float
    """Seconds, of requests that were not refused."""
    goodput: float
    """Share of all requests, refused ones included, whose first token came in time."""
    refused: float
    """Share of requests."""
    imbalance: float
    """Busy time of the busiest replica over the mean."""
    hit_error: float
    """Mean of |predicted - actual| hit tokens, as a share of the prompt."""
    ttft_error: float
    """Mean of |predicted - actual| time to first token, in seconds."""


def measure(run: Run, ttft_bound: float) -> Figures:
    """The figures of a run; `ttft_bound` seconds is in time."""
    outcomes = [outcome for outcome in run.outcomes if outcome.arrived >= WARM_UP]
    served = [outcome for outcome in outcomes if outcome.ttft is not None]
    ttfts = sorted(outcome.ttft for outcome in served if outcome.ttft is not None)
    prompts = sum(outcome.item.num_prompt_tokens for outcome in served)
    errors = [abs(outcome.predicted_ttft - outcome.ttft) for outcome in served if outcome.ttft]
    total = len(outcomes)
    missed = sum(abs(outcome.predicted_hit_tokens - outcome.hit_tokens) for outcome in served)
    return Figures(
        hit_rate=sum(outcome.hit_tokens for outcome in served) / prompts,
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p99=percentile(ttfts, 0.99),
        goodput=sum(ttft <= ttft_bound for ttft in ttfts) / total,
        refused=sum(outcome.refused for outcome in outcomes) / total,
        imbalance=max(run.busy_seconds) / statistics.fmean(run.busy_seconds),
        hit_error=missed / prompts,
        ttft_error=statistics.fmean(errors),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def medians(figures: Sequence[Figures]) -> Figures:
    """Each figure's median."""
    return Figures(
        **{
            field.name: statistics.median(getattr(one, field.name) for one in figures)
            for field in dataclasses.fields(Figures)
        }
    )
