"""The goodput of one choice of settings: a server is started, and pressed until it breaks the
latency bounds."""

import dataclasses
import math
from collections.abc import Sequence

import uvloop

from pagelet.bench.load import datasets
from pagelet.bench.load.datasets import Lengths
from pagelet.bench.load.run import Load, RunResult, run_completions
from pagelet.bench.load.statistics import Bounds, summarise
from pagelet.bench.load.vocabulary import Vocabulary
from pagelet.bench.progress import Progress
from pagelet.bench.server import running_server
from pagelet.bench.tune.search import Score, Settings, best_rate

_START_SECONDS = 600.0
_UNLOADED_REQUESTS = 4


@dataclasses.dataclass(frozen=True)
class Goal:
    """What a server is tuned for."""

    bounds: Bounds
    share: float
    """Of requests that must keep the bounds."""
    lengths: Lengths
    num_prompts: int
    """Of one run at one rate, at least."""
    seconds: float
    """That arrivals go on in a run, at least: too high a rate needs time to show."""
    runs: int
    """Rates to try for each choice of settings."""
    seed: int


def serve_flags(settings: Settings) -> list[str]:
    """The options of `pagelet serve` for settings."""
    return [
        part
        for name, value in settings.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]


def evaluate(
    model: str,
    arguments: Sequence[str],
    settings: Settings,
    goal: Goal,
    vocabulary: Vocabulary,
    progress: Progress,
) -> Score:
    """Serves the model with the settings, and finds the highest rate at which they reach the goal.

    All settings get the same prompts and arrivals. Raises `ServerFailed`.
    """
    title = ", ".join(f"{name} {value}" for name, value in settings.items())
    command = [model, "--served-model-name", "model", *serve_flags(settings), *arguments]
    with running_server(command) as server:
        server.wait_until_ready(
            _START_SECONDS, lambda waited: progress(f"{title}: starting, {waited:.0f} s")
        )
        runs = 0

        def press(count: int, load: Load) -> tuple[RunResult, float]:
            """The result of a run, and the share of requests that kept the bounds."""
            nonlocal runs
            runs += 1  # other prompts in each run, so that none is cached
            workload = datasets.random_prompts(
                vocabulary, count, goal.lengths, goal.seed + 1000 * runs
            )
            result = uvloop.run(run_completions(server.address, "model", workload, load))
            return result, float(summarise(result, goal.bounds)["good_share"])

        def keeps(rate: float) -> bool:
            progress(f"{title}: {rate:.2f} requests/s")
            count = max(goal.num_prompts, math.ceil(rate * goal.seconds))
            return press(count, Load(None, rate, seed=goal.seed))[1] >= goal.share

        progress(f"{title}: one request at a time")
        press(1, Load(concurrency=1))  # warms up
        _, unloaded = press(_UNLOADED_REQUESTS, Load(concurrency=1))
        if unloaded < goal.share:
            return Score(0.0, unloaded)
        progress(f"{title}: all requests at once")
        burst, _ = press(goal.num_prompts, Load(request_rate=math.inf))
        throughput = sum(record.ok for record in burst.records) / burst.duration
        return Score(best_rate(keeps, throughput, goal.runs), unloaded)
