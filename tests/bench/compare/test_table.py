"""The table from fixed results."""

from pathlib import Path
from typing import Any

import pytest

from pagelet.bench.compare.presets import OUTPUT, PRESETS, TTFT, Metric, Preset, choose
from pagelet.bench.compare.rounds import Measurement
from pagelet.bench.compare.table import (
    Spread,
    against_the_best,
    compare,
    markdown,
    markdown_verdicts,
    plot,
)
from pagelet.bench.load.run import Load
from pagelet.bench.load.workload import Workload

HIT = Metric(("by_label", "hit", "median_ttft_ms"), "TTFT, hit, ms", "lower")


def preset(*metrics: Metric) -> Preset:
    return Preset("w", "", lambda words, seed: Workload("w", ()), Load(), metrics, 1, 1)


def measured(peer: str, number: int, **figures: Any) -> Measurement:
    return Measurement(peer, "w", number, {"failed": 0, **figures})


def test_ratios_are_taken_within_a_round_and_more_than_1_is_better() -> None:
    # The machine was twice as slow in round 1, for both: the ratios show that it was the machine.
    measurements = [
        measured("a", 0, output_throughput=100.0, median_ttft_ms=10.0),
        measured("b", 0, output_throughput=40.0, median_ttft_ms=30.0),
        measured("a", 1, output_throughput=50.0, median_ttft_ms=20.0),
        measured("b", 1, output_throughput=20.0, median_ttft_ms=60.0),
    ]
    rows = compare(measurements, [preset(OUTPUT, TTFT)], ["a", "b"])
    assert [(row.metric.text, row.peer) for row in rows] == [
        ("output tokens/s", "a"),
        ("output tokens/s", "b"),
        ("TTFT p50, ms", "a"),
        ("TTFT p50, ms", "b"),
    ]
    assert rows[0].value == Spread(50.0, 75.0, 100.0)
    assert rows[0].advantage is None
    assert rows[1].advantage == Spread(2.5, 2.5, 2.5)
    assert rows[3].advantage == Spread(3.0, 3.0, 3.0)


def test_a_figure_of_a_label_and_rounds_that_are_missing() -> None:
    measurements = [
        measured("a", 0, by_label={"hit": {"median_ttft_ms": 5.0}}),
        measured("a", 1, by_label={"hit": {"median_ttft_ms": 7.0}}),
        measured("b", 1, by_label={"hit": {"median_ttft_ms": 14.0}}),
        measured("b", 0),
        measured("c", 0, by_label={"hit": {}}),
    ]
    of_a, of_b, of_c = compare(measurements, [preset(HIT)], ["a", "b", "c"])
    assert of_a.value == Spread(5.0, 6.0, 7.0)
    assert of_b.advantage == Spread(2.0, 2.0, 2.0)
    assert of_c.value is of_c.advantage is None


def test_the_markdown_says_the_spread_and_what_failed() -> None:
    measurements = [
        measured("a", 0, output_throughput=1234.0),
        measured("a", 1, output_throughput=1300.0),
        measured("b", 0, output_throughput=617.0, failed=2),
        measured("b", 1, output_throughput=325.0, failed=1),
        measured("c", 0, failed=4),
    ]
    text = markdown(compare(measurements, [preset(OUTPUT)], ["a", "b", "c"]), "a")
    assert text.splitlines() == [
        "| workload | figure | server | value | a is better by |",
        "| --- | --- | --- | ---: | ---: |",
        "| w | output tokens/s | a | 1,267 (1,234 to 1,300) |  |",
        "| w | output tokens/s | b | 471 (325 to 617), 3 failed | 3.00 (2.00 to 4.00) times |",
        "| w | output tokens/s | c | -, 4 failed |  |",
    ]


def test_each_variant_is_held_against_the_best_of_the_others_in_each_figure() -> None:
    figures = {
        "a:fast": (100.0, 10.0),
        "a:slow": (60.0, 40.0),
        "b:x": (50.0, 30.0),
        "b:y": (40.0, 20.0),
        "c:z": (0.0, 0.0),  # brought nothing
    }
    measurements = [
        measured(peer, number, output_throughput=rate / slow, median_ttft_ms=ttft * slow)
        for number, slow in enumerate((1, 2, 4))
        for peer, (rate, ttft) in figures.items()
    ]
    verdicts = against_the_best(measurements, [preset(OUTPUT, TTFT)], list(figures))
    assert [(found.own, found.rival, found.advantage.median) for found in verdicts] == [
        ("a:fast", "b:x", 2.0),
        ("a:slow", "b:x", 1.2),
        ("a:fast", "b:y", 2.0),
        ("a:slow", "b:y", 0.5),
    ]
    assert markdown_verdicts(verdicts).splitlines()[2:3] == [
        "| w | output tokens/s | a:fast | b:x | 2.00 times |"
    ]


def test_without_others_there_is_no_best_of_them() -> None:
    measurements = [measured(peer, 0, output_throughput=1.0) for peer in ("a:x", "a:y")]
    assert against_the_best(measurements, [preset(OUTPUT)], ["a:x", "a:y"]) == []


def test_a_plot_has_a_panel_a_workload(tmp_path: Path) -> None:
    measurements = [
        measured("a", 0, output_throughput=3.0, median_ttft_ms=2.0),
        measured("b", 0, median_ttft_ms=1.0),
    ]
    path = tmp_path / "new" / "plot.png"
    plot(compare(measurements, [preset(OUTPUT, TTFT)], ["a", "b"]), ["a", "b"], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_workloads_are_chosen_by_name() -> None:
    assert [found.name for found in choose(["batch16,single", "multi-turn"])] == [
        "batch16",
        "single",
        "multi-turn",
    ]
    assert choose([]) == list(PRESETS.values())
    with pytest.raises(ValueError, match="no workload 'x': give single"):
        choose(["x"])
