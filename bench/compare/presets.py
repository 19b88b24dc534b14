"""The workloads that servers are compared by."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from pagelet.bench.load import datasets
from pagelet.bench.load.datasets import Lengths
from pagelet.bench.load.run import Load
from pagelet.bench.load.vocabulary import Vocabulary
from pagelet.bench.load.workload import Session, Turn, Workload

Make = Callable[[Vocabulary, int], Workload]
"""From a vocabulary of text and a seed."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A figure of a run to compare: where it is among its figures, and which way is better."""

    path: tuple[str, ...]
    text: str
    better: Literal["higher", "lower"]

    def of(self, figures: dict[str, Any]) -> float | None:
        """Its value; None where the run brought none."""
        value: Any = figures
        for key in self.path:
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else float(value)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A workload with the load and the figures that it is for."""

    name: str
    text: str
    make: Make
    load: Load
    metrics: tuple[Metric, ...]
    slots: int
    """Requests at once."""
    context: int
    """Tokens of the longest request, its answer included."""
    episodes: int = 1
    """How often it runs, with other prompts each time; one ends before the next begins."""


OUTPUT = Metric(("output_throughput",), "output tokens/s", "higher")
TOTAL = Metric(("total_token_throughput",), "total tokens/s", "higher")
TTFT = Metric(("median_ttft_ms",), "TTFT p50, ms", "lower")
TPOT = Metric(("median_tpot_ms",), "TPOT p50, ms", "lower")


def _of_label(label: str, key: str, text: str) -> Metric:
    return Metric(("by_label", label, key), f"{text}, {label}, ms", "lower")


def _random(count: int, input_len: int, output_len: int) -> Make:
    return lambda words, seed: datasets.random_prompts(
        words, count, Lengths(input_len, output_len), seed
    )


def _shared_prefix(words: Vocabulary, seed: int) -> Workload:
    return datasets.shared_prefix(words, 32, Lengths(32, 64), seed, prefix_len=1024)


def _multi_turn(words: Vocabulary, seed: int) -> Workload:
    return datasets.multi_turn(words, 8, Lengths(128, 64), seed, turns=5)


def prefix_hit(words: Vocabulary, seed: int) -> Workload:
    """Each prompt twice in a row: cold, then in the cache but for what must be computed again."""
    cold = datasets.random_prompts(words, 4, Lengths(1024, 4), seed)
    sessions = [
        Session(session.turns, label=label)
        for session in cold.sessions
        for label in ("cold", "hit")
    ]
    return Workload("prefix-hit", tuple(sessions), cold.parameters)


def interference(words: Vocabulary, seed: int) -> Workload:
    """Two streams decode; a long prompt comes, and just after it a short one."""
    running = datasets.random_prompts(words, 2, Lengths(64, 512), seed)
    (long,) = datasets.random_prompts(words, 1, Lengths(2000, 8), seed + 1).sessions
    (short,) = datasets.random_prompts(words, 1, Lengths(32, 8), seed + 2).sessions
    sessions = [
        *(Session(session.turns, 0.0, "running") for session in running.sessions),
        Session(long.turns, 1.5, "long"),
        Session(short.turns, 1.6, "short"),
    ]
    return Workload("long-prompt-interference", tuple(sessions), {"seed": seed})


def warm_up(words: Vocabulary, seed: int) -> Workload:
    """Some requests of several lengths together, so that no lazily made thing is measured."""
    sessions = [
        Session((Turn(turn.content, turn.max_tokens),))
        for input_len in (16, 256, 1024)
        for session in datasets.random_prompts(words, 2, Lengths(input_len, 8), seed).sessions
        for turn in session.turns
    ]
    return Workload("warm-up", tuple(sessions))


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "single",
            "one stream, 128 tokens in, 128 out",
            _random(6, 128, 128),
            Load(concurrency=1),
            (OUTPUT, TPOT, TTFT),
            slots=1,
            context=256,
        ),
        Preset(
            "long-prompt",
            "one stream, 1,024 tokens in, 16 out",
            _random(5, 1024, 16),
            Load(concurrency=1),
            (TTFT,),
            slots=1,
            context=1040,
        ),
        Preset(
            "batch16",
            "16 streams, 256 tokens in, 64 out",
            _random(48, 256, 64),
            Load(concurrency=16),
            (TOTAL, OUTPUT, TTFT, TPOT),
            slots=16,
            context=320,
        ),
        Preset(
            "shared-prefix",
            "8 streams, a prefix of 1,024 tokens that all share, 32 of their own in, 64 out",
            _shared_prefix,
            Load(concurrency=8),
            (OUTPUT, TTFT),
            slots=8,
            context=1120,
        ),
        Preset(
            "multi-turn",
            "4 streams, conversations of 5 turns, 128 tokens in and 64 out each",
            _multi_turn,
            Load(concurrency=4),
            (OUTPUT, TTFT),
            slots=4,
            context=960,
        ),
        Preset(
            "prefix-hit",
            "one stream, each prompt of 1,024 tokens twice in a row",
            prefix_hit,
            Load(concurrency=1),
            (
                _of_label("hit", "median_ttft_ms", "TTFT p50"),
                _of_label("cold", "median_ttft_ms", "TTFT p50"),
            ),
            slots=1,
            context=1028,
        ),
        Preset(
            "long-prompt-interference",
            "2 streams decode, a prompt of 2,000 tokens comes, and 0.1 s later one of 32",
            interference,
            Load(),
            (
                _of_label("short", "median_ttft_ms", "TTFT p50"),
                _of_label("running", "p99_itl_ms", "ITL p99"),
                _of_label("long", "median_ttft_ms", "TTFT p50"),
            ),
            slots=4,
            context=2008,
            episodes=3,
        ),
    )
}


def choose(names: list[str]) -> list[Preset]:
    """Presets by name; all for none. Raises `ValueError` with the names that there are."""
    wanted = [name for text in names for name in text.replace(",", " ").split()]
    for name in wanted:
        if name not in PRESETS:
            raise ValueError(f"there is no workload {name!r}: give {', '.join(PRESETS)}")
    return [PRESETS[name] for name in wanted or PRESETS]
