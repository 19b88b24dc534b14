"""The search on functions whose best is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.bench.tune.search import Score, Settings, best_rate, coordinate_search

SPACE: dict[str, tuple[int | str, ...]] = {
    "tokens": (64, 128, 256, 512, 1024),
    "seqs": (2, 4, 8, 16),
}
START: Settings = {"tokens": 256, "seqs": 4}


@given(limit=st.floats(0.01, 100), guess=st.floats(0.01, 100), runs=st.integers(1, 10))
def test_the_rate_is_closed_in_from_below(limit: float, guess: float, runs: int) -> None:
    tried: list[float] = []

    def keeps(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    found = best_rate(keeps, guess, runs)
    assert len(tried) == runs
    assert tried[0] == guess
    assert found == max((rate for rate in tried if rate <= limit), default=0.0)
    above = [rate for rate in tried if rate > limit]
    if above:
        doublings = tried.index(above[0])
        halvings = runs - 1 - doublings
        assert min(above) - found <= above[0] * (2**-halvings + 1e-9)
    else:
        assert found == guess * 2 ** (runs - 1)


@given(
    tokens=st.sampled_from(SPACE["tokens"]),
    seqs=st.sampled_from(SPACE["seqs"]),
    start_tokens=st.sampled_from(SPACE["tokens"]),
    start_seqs=st.sampled_from(SPACE["seqs"]),
)
def test_the_peak_of_a_hill_is_found_from_anywhere(
    tokens: int, seqs: int, start_tokens: int, start_seqs: int
) -> None:
    peak: Settings = {"tokens": tokens, "seqs": seqs}

    def hill(settings: Settings) -> Score:
        away = sum(
            abs(values.index(settings[name]) - values.index(peak[name]))
            for name, values in SPACE.items()
        )
        return Score(10.0 / (1 + away), 1.0)

    start: Settings = {"tokens": start_tokens, "seqs": start_seqs}
    best, trials = coordinate_search(start, SPACE, hill, 100)
    assert best.settings == peak
    assert trials[0].settings == start
    assert len({tuple(trial.settings.items()) for trial in trials}) == len(trials)
    assert len(trials) < 5 * 4  # not all


def test_names_have_no_order() -> None:
    """The best one may stand behind one that is worse than the first."""
    rates = {"auto": 10.0, "int8": 8.0, "int4": 15.0}
    best, trials = coordinate_search(
        {"quantization": "auto"},
        {"quantization": tuple(rates)},
        lambda settings: Score(rates[str(settings["quantization"])], 1.0),
        100,
    )
    assert best.settings == {"quantization": "int4"}
    assert len(trials) == len(rates)


def test_noise_changes_nothing() -> None:
    best, trials = coordinate_search(
        START, SPACE, lambda settings: Score(10.0 + 0.2 * (settings != START), 1.0), 100
    )
    assert best.settings == START
    assert len(trials) == 5  # itself and its neighbours


def test_the_number_of_trials_is_bounded() -> None:
    best, trials = coordinate_search(
        START, SPACE, lambda settings: Score(float(settings["tokens"]), 1.0), 3
    )
    assert [trial.settings["tokens"] for trial in trials] == [256, 128, 512]
    assert best.settings["tokens"] == 512


def test_where_no_rate_will_do_the_way_leads_to_where_more_requests_keep_the_bounds() -> None:
    def evaluate(settings: Settings) -> Score:
        tokens = int(settings["tokens"])
        return Score(1.0 if tokens == 64 else 0.0, 32 / tokens)

    best, _ = coordinate_search(START, SPACE, evaluate, 100)
    assert best.settings["tokens"] == 64


@pytest.mark.parametrize(
    ("score", "other", "beats"),
    [
        (Score(1.1, 0.0), Score(1.0, 1.0), True),
        (Score(1.01, 1.0), Score(1.0, 0.0), False),
        (Score(0.1, 0.0), Score(0.0, 1.0), True),
        (Score(0.0, 1.0), Score(0.1, 0.0), False),
        (Score(0.0, 0.6), Score(0.0, 0.5), True),
    ],
)
def test_a_rate_counts_before_a_share(score: Score, other: Score, beats: bool) -> None:
    assert score.beats(other, 0.03) is beats
