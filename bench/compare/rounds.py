"""Runs the same workloads on each server in turn, A B A B, so that whatever the machine does
meanwhile falls on all of them."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from pagelet.bench.compare.peers import Peer
from pagelet.bench.compare.presets import Preset, warm_up
from pagelet.bench.load.run import Load, RunResult, run_completions
from pagelet.bench.load.statistics import summarise
from pagelet.bench.load.vocabulary import Vocabulary
from pagelet.bench.load.workload import Workload
from pagelet.bench.progress import Progress

_CONTEXT_MARGIN = 64  # for what a server puts around a prompt
_SEED_STRIDE = 1000


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Figures of one workload on one server in one round."""

    peer: str
    workload: str
    round: int
    figures: dict[str, Any]


def run_rounds(
    peers: Sequence[Peer],
    presets: Sequence[Preset],
    rounds: int,
    model: Path,
    models: Path,
    vocabulary: Vocabulary,
    progress: Progress,
) -> Iterator[Measurement]:
    """Starts each server anew in each round, one at a time, and yields what each workload brings.

    Within a round all servers get the same prompts; no prompt comes twice to a server. Raises
    `PeerFailed`.
    """
    prepared = {peer: peer.prepare(model, models, progress) for peer in peers}
    slots = max(preset.slots for preset in presets)
    context = max(preset.context for preset in presets) + _CONTEXT_MARGIN
    for number in range(rounds):
        for peer in peers:
            where = f"round {number + 1} of {rounds}, {peer.title}"
            with peer.serving(prepared[peer], slots, context, progress) as server:
                progress(f"{where}: warming up")
                base = number * len(presets) * _SEED_STRIDE
                run(server.address, Load(concurrency=2), [warm_up(vocabulary, base + 999)])
                for index, preset in enumerate(presets):
                    progress(f"{where}: {preset.name}")
                    seed = base + index * _SEED_STRIDE
                    workloads = [
                        preset.make(vocabulary, seed + 10 * episode)
                        for episode in range(preset.episodes)
                    ]
                    result = run(server.address, preset.load, workloads)
                    yield Measurement(peer.title, preset.name, number, summarise(result))


def run(address: str, load: Load, workloads: Sequence[Workload]) -> RunResult:
    """One workload after the other; the result of all together."""
    results = [
        uvloop.run(run_completions(address, "model", workload, load)) for workload in workloads
    ]
    return RunResult(
        [record for result in results for record in result.records],
        sum(result.duration for result in results),
        sum(result.cpu_seconds for result in results),
    )
