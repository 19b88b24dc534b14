"""What the named workloads are made of."""

import pytest

from pagelet.bench.compare.presets import PRESETS, Preset, interference, prefix_hit, warm_up
from pagelet.bench.load.vocabulary import Words

WORDS = Words()


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())
def test_a_preset_fits_in_what_it_asks_for_and_differs_by_seed(preset: Preset) -> None:
    workload = preset.make(WORDS, 1)
    for session in workload.sessions:
        total = 0
        for turn in session.turns:
            assert isinstance(turn.content, str)  # all servers and endpoints take text
            total += len(turn.content.split()) + turn.max_tokens
        assert total <= preset.context
    assert (preset.load.concurrency or len(workload.sessions)) <= preset.slots
    assert workload == preset.make(WORDS, 1)
    first, other = workload.sessions[0], preset.make(WORDS, 2).sessions[0]
    assert first.turns[0].content != other.turns[0].content


def test_metrics_are_among_the_figures_that_a_preset_brings() -> None:
    for preset in PRESETS.values():
        labels = {session.label for session in preset.make(WORDS, 1).sessions}
        for metric in preset.metrics:
            if metric.path[0] == "by_label":
                assert metric.path[1] in labels


def test_each_prompt_of_prefix_hit_comes_twice_in_a_row() -> None:
    sessions = prefix_hit(WORDS, 1).sessions
    for cold, hit in zip(sessions[::2], sessions[1::2], strict=True):
        assert (cold.label, hit.label) == ("cold", "hit")
        assert cold.turns == hit.turns
    assert len({session.turns for session in sessions}) == len(sessions) // 2


def test_the_short_prompt_comes_just_after_the_long_one() -> None:
    by_label = {session.label: session for session in interference(WORDS, 1).sessions}
    arrivals = {label: session.arrival or 0.0 for label, session in by_label.items()}
    assert arrivals["running"] < arrivals["long"] < arrivals["short"]
    assert len(str(by_label["long"].turns[0].content).split()) == 2000


def test_the_warm_up_has_several_lengths() -> None:
    contents = [str(session.turns[0].content) for session in warm_up(WORDS, 3).sessions]
    assert {len(content.split()) for content in contents} == {16, 256, 1024}
