"""`pagelet bench routing`."""

import dataclasses
import json
import os
import typing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from pagelet.bench.figures import machine
from pagelet.bench.progress import Progress, show_progress
from pagelet.bench.routing.cases import ORACLE, Case, CaseFailed, run_case_apart
from pagelet.bench.routing.cost import measure_cost
from pagelet.bench.routing.measure import Figures, medians
from pagelet.bench.routing.peers import PEERS
from pagelet.bench.routing.replica import Hardware
from pagelet.bench.routing.simulate import Conditions
from pagelet.bench.routing.traces import TRACES
from pagelet.process.output import output_console
from pagelet.protocol.router import PolicyName, RoutingOptions

_RESULT_VERSION = 1
_POLICIES: tuple[str, ...] = (ORACLE, *typing.get_args(PolicyName), *PEERS)
_TRACES = tuple(trace.name for trace in TRACES)
_DEFAULT_POLICY = RoutingOptions().policy
_DEFAULTS = Conditions()
_HARDWARE = Hardware()


class _Result(NamedTuple):
    case: Case
    figures: Figures
    """Medians over the seeds."""
    tails: tuple[float, float]
    """Least and greatest TTFT p99 of a seed."""


def routing(
    policies: Annotated[
        list[str] | None, typer.Option("--policy", help=f"Of {', '.join(_POLICIES)}.")
    ] = None,
    traces: Annotated[
        list[str] | None, typer.Option("--trace", help=f"Of {', '.join(_TRACES)}.")
    ] = None,
    loads: Annotated[
        list[float] | None,
        typer.Option(
            "--load", min=0.05, max=2, help="Shares of the capacity. [default: 0.7 and 0.9]"
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Simulated engines.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="Virtual time that is measured.")] = 30.0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each case, for the medians.")] = 3,
    ttft_bound: Annotated[
        float, typer.Option(min=0.001, help="Seconds to the first token that count as good.")
    ] = 1.0,
    routers: Annotated[
        int, typer.Option(min=1, help="Routers side by side, which do not talk.")
    ] = _DEFAULTS.num_routers,
    restarts: Annotated[
        int, typer.Option(min=0, help="So often all routers are replaced by new ones.")
    ] = _DEFAULTS.restarts,
    events: Annotated[bool, typer.Option(help="Replicas send KV events.")] = _DEFAULTS.events,
    events_delay: Annotated[
        float, typer.Option(min=0, help="Seconds until routers hear of them.")
    ] = _DEFAULTS.events_delay,
    events_lost: Annotated[
        float, typer.Option(min=0, max=1, help="Share of them that is lost unnoticed.")
    ] = _DEFAULTS.events_lost,
    forged_claims: Annotated[
        int, typer.Option(min=0, help="Replicas said to hold every prompt before it comes.")
    ] = _DEFAULTS.forged_claims,
    described: Annotated[
        bool, typer.Option(help="Replicas tell their speed and size.")
    ] = _DEFAULTS.described,
    slow_replicas: Annotated[
        int, typer.Option(min=0, help="Replicas that take three times as long.")
    ] = _DEFAULTS.slow_replicas,
    num_blocks: Annotated[
        int, typer.Option(min=64, help="KV blocks of a replica.")
    ] = _HARDWARE.num_blocks,
    step_seconds: Annotated[
        float, typer.Option(min=0, help="What a step takes.")
    ] = _HARDWARE.step_seconds,
    token_seconds: Annotated[
        float, typer.Option(min=0, help="What each of a step's tokens adds to it.")
    ] = _HARDWARE.token_seconds,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes. [default: one a core]")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
) -> None:
    """Compare routing policies on simulated replicas, beside an oracle.

    The policies are the router's own, the replicas run the engine's own scheduler and KV cache;
    only time is simulated, so figures do not depend on this machine. The oracle knows every
    replica's exact cache and queue. Takes about half an hour of one core with all policies and
    traces. At the end comes what a choice really costs on this machine.
    """
    console = output_console()
    for given, known, option in (
        (policies, _POLICIES, "--policy"),
        (traces, _TRACES, "--trace"),
    ):
        for value in given or ():
            if value not in known:
                raise typer.BadParameter(
                    f"{value!r} is none of {', '.join(known)}", param_hint=option
                )
    conditions = Conditions(
        num_routers=routers,
        events_delay=events_delay,
        events_lost=events_lost,
        events=events,
        described=described,
        slow_replicas=min(slow_replicas, replicas),
        restarts=restarts,
        forged_claims=min(forged_claims, replicas),
    )
    hardware = Hardware(step_seconds, token_seconds, num_blocks=num_blocks)
    cases = [
        Case(trace, load, policy, replicas, seconds, ttft_bound, hardware, conditions)
        for load in loads or (0.7, 0.9)
        for trace in traces or _TRACES
        for policy in policies or _POLICIES
    ]
    try:
        with show_progress(console) as progress:
            results = _run(cases, seeds, jobs or os.cpu_count() or 1, progress)
            progress("what a choice costs")
            costs = measure_cost()
    except CaseFailed as error:
        output_console(stderr=True).print(f"failed: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    for table in (*_tables(results), *_tails_by_load(results)):
        console.print(table)
    console.print(
        f"A choice among {costs.replicas} replicas for a prompt of {costs.prompt_tokens} tokens "
        f"takes {costs.choose_p50 * 1e3:.3f} ms (p50), {costs.choose_p99 * 1e3:.3f} ms (p99), "
        f"counting it as sent {costs.dispatch_p50 * 1e3:.3f} ms."
    )
    if json_file is not None:
        document: dict[str, Any] = {
            "version": _RESULT_VERSION,
            "machine": machine(),
            "seeds": seeds,
            "cost": dataclasses.asdict(costs),
            "cases": [
                dataclasses.asdict(case) | {"figures": dataclasses.asdict(figures)}
                for case, figures, _ in results
            ],
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(document, indent=2))


def _run(cases: list[Case], seeds: int, jobs: int, progress: Progress) -> list[_Result]:
    """Each case's medians over all seeds, `jobs` runs at a time."""
    results = []
    with ThreadPoolExecutor(jobs) as pool:
        runs = [
            [pool.submit(run_case_apart, case, seed) for seed in range(seeds)] for case in cases
        ]
        try:
            for case, futures in zip(cases, runs, strict=True):
                progress(f"{case.trace} at {case.load:g} of capacity: {case.policy}")
                figures = [future.result() for future in futures]
                tails = sorted(each.ttft_p99 for each in figures)
                results.append(_Result(case, medians(figures), (tails[0], tails[-1])))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _tables(results: list[_Result]) -> Iterator[Table]:
    """One for each trace and load."""
    for (trace, load), group in _grouped(results).items():
        about = next(one.about for one in TRACES if one.name == trace)
        table = Table(title=f"{trace} ({about}) at {load:g} of capacity", title_justify="left")
        table.add_column("policy")
        for header in (
            "hit rate",
            "TTFT p50 ms",
            "p99 ms",
            "of all seeds",
            "good",
            "refused",
            "imbalance",
        ):
            table.add_column(header, justify="right")
        for case, figures, (least, most) in group:
            table.add_row(
                case.policy,
                f"{figures.hit_rate:.1%}",
                f"{figures.ttft_p50 * 1e3:,.0f}",
                f"{figures.ttft_p99 * 1e3:,.0f}",
                f"{least * 1e3:,.0f} to {most * 1e3:,.0f}",
                f"{figures.goodput:.1%}",
                f"{figures.refused:.1%}",
                f"{figures.imbalance:.2f}",
            )
        yield table


def _tails_by_load(results: list[_Result]) -> Iterator[Table]:
    """One for each trace that has several loads, with what `prefix` gains in the last row."""
    traces: dict[str, dict[str, dict[float, float]]] = {}
    for case, figures, _ in results:
        policies = traces.setdefault(case.trace, {})
        policies.setdefault(case.policy, {})[case.load] = figures.ttft_p99
    for trace, policies in traces.items():
        loads = list(next(iter(policies.values())))
        if len(loads) == 1:
            continue
        table = Table(title=f"{trace}: TTFT p99 ms by load", title_justify="left")
        table.add_column("policy")
        for load in loads:
            table.add_column(f"{load:g}", justify="right")
        for policy, tails in policies.items():
            table.add_row(policy, *(f"{tails[load] * 1e3:,.0f}" for load in loads))
        ours = policies.pop(_DEFAULT_POLICY, None)
        policies.pop(ORACLE, None)
        if ours and policies:
            best = {load: min(tails[load] for tails in policies.values()) for load in loads}
            gains = (f"{1 - ours[load] / best[load]:.0%}" for load in loads)
            table.add_row(f"{_DEFAULT_POLICY} below the best other", *gains)
        yield table


def _grouped(
    results: list[_Result],
) -> dict[tuple[str, float], list[_Result]]:
    groups: dict[tuple[str, float], list[_Result]] = {}
    for result in results:
        groups.setdefault((result.case.trace, result.case.load), []).append(result)
    return groups
