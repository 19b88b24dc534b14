"""Results of several runs as a markdown table."""

import dataclasses
import statistics
from collections.abc import Sequence

from pagelet.bench.routers.play import Figures


@dataclasses.dataclass(frozen=True)
class Result:
    """One run."""

    router: str
    trace: str
    seed: int
    figures: Figures


_HEAD = (
    "| trace | router | hit rate | TTFT p50, ms | TTFT p99, ms | in time | imbalance | failed |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


def medians(results: Sequence[Result]) -> Figures:
    """Each figure's median over runs; failures are added up."""
    values = {
        field.name: statistics.median(getattr(each.figures, field.name) for each in results)
        for field in dataclasses.fields(Figures)
    }
    return Figures(**values | {"failed": sum(each.figures.failed for each in results)})


def markdown(results: Sequence[Result]) -> str:
    """One row a trace and router, in the order in which they first came. Times at p99 have their
    least and greatest over the seeds beside the median."""
    keys = dict.fromkeys((result.trace, result.router) for result in results)
    return _HEAD + "".join(
        _row(trace, router, [r for r in results if (r.trace, r.router) == (trace, router)])
        for trace, router in keys
    )


def _row(trace: str, router: str, results: Sequence[Result]) -> str:
    of = medians(results)
    tails = sorted(result.figures.ttft_p99 * 1e3 for result in results)
    spread = f" ({tails[0]:,.0f} to {tails[-1]:,.0f})" if len(tails) > 1 else ""
    return (
        f"| {trace} | {router} | {of.hit_rate:.1%} | {of.ttft_p50 * 1e3:,.0f} | "
        f"{of.ttft_p99 * 1e3:,.0f}{spread} | {of.goodput:.1%} | {of.imbalance:.2f} | "
        f"{of.failed:.0f} |\n"
    )
