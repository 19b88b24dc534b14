"""One case of the comparison: a trace at a load under a policy.

`python -m pagelet.bench.routing.cases` runs one: a `Job` as JSON on its standard input, its
`Figures` as JSON on its standard output.
"""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from pagelet.bench.routing.measure import Figures, measure
from pagelet.bench.routing.peers import PEERS, make_peer
from pagelet.bench.routing.replica import Hardware, SimulatedReplica
from pagelet.bench.routing.simulate import (
    Conditions,
    FleetRouter,
    OracleRouter,
    Router,
    Run,
    simulate,
)
from pagelet.bench.routing.traces import TRACES, make_items
from pagelet.protocol.router import RoutingOptions
from pagelet.router.routing.fleet import Fleet

ORACLE = "oracle"


@dataclasses.dataclass(frozen=True)
class Case:
    """Everything but the seed."""

    trace: str
    load: float
    policy: str
    """A `PolicyName`, one of `PEERS`, or `oracle`."""
    replicas: int = 8
    seconds: float = 30.0
    ttft_bound: float = 1.0
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    conditions: Conditions = dataclasses.field(default_factory=Conditions)


class Job(msgspec.Struct):
    """A case with its seed."""

    case: Case
    seed: int


class CaseFailed(Exception):
    """A case's process ended with an error; the message is the end of what it said."""


def simulate_case(case: Case, seed: int) -> Run:
    """Runs a case; the same seed gives all policies the same requests."""
    trace = next(trace for trace in TRACES if trace.name == case.trace)
    capacity = case.replicas * case.hardware.tokens_per_second
    items = make_items(trace, seed, case.seconds, case.load, capacity)

    def make_router(replicas: Sequence[SimulatedReplica], number: int) -> Router:
        if case.policy == ORACLE:
            return OracleRouter(replicas)
        if case.policy in PEERS:
            return make_peer(case.policy, len(replicas))
        options = msgspec.convert({"policy": case.policy}, RoutingOptions)
        fleet = Fleet(options, seed=1000 * seed + number)
        return FleetRouter(fleet, replicas, case.conditions.described)

    return simulate(items, make_router, case.replicas, case.hardware, case.conditions, seed)


def run_case(case: Case, seed: int) -> Figures:
    """The figures of one run."""
    return measure(simulate_case(case, seed), case.ttft_bound)


def run_case_apart(case: Case, seed: int) -> Figures:
    """`run_case` in a process of its own, so that a machine's cores all have one. Raises
    `CaseFailed`."""
    tied = [sys.executable, "-m", "pagelet.process.tied", str(os.getpid())]
    done = subprocess.run(
        [*tied, "pagelet.bench.routing.cases"],
        input=msgspec.json.encode(Job(case, seed)),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise CaseFailed(done.stderr.decode(errors="replace").strip()[-2000:])
    return msgspec.json.decode(done.stdout, type=Figures)


def main() -> None:
    """Entry point of a case's process."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(run_case(job.case, job.seed)))


if __name__ == "__main__":
    main()
