"""Looks for the best settings with few trials, each of which takes minutes."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

Settings = dict[str, int | str]
"""Names and values of a server's options."""


@dataclasses.dataclass(frozen=True, order=True)
class Score:
    """How good settings are; compared by rate first."""

    rate: float
    """Requests a second, the most at which enough of them kept the bounds."""
    share: float
    """That kept the bounds with nothing else to do: tells settings apart that reach no rate."""

    def beats(self, other: "Score", margin: float) -> bool:
        """Whether it is better by more than noise: by the share `margin` of the other's rate."""
        if max(self.rate, other.rate) > 0:
            return self.rate > other.rate * (1 + margin)
        return self.share > other.share + margin


@dataclasses.dataclass(frozen=True)
class Trial:
    """Settings that were tried, and what came of them."""

    settings: Settings
    score: Score


def best_rate(keeps: Callable[[float], bool], guess: float, runs: int) -> float:
    """The highest of `runs` rates at which `keeps` holds, 0.0 if at none: from `guess` it is
    doubled until one fails, and from then on what lies between is halved."""
    low, high = 0.0, math.inf
    rate = guess
    for _ in range(runs):
        if keeps(rate):
            low = rate
        else:
            high = rate
        rate = 2 * low if math.isinf(high) else (low + high) / 2
    return low


def coordinate_search(
    start: Settings,
    space: Mapping[str, Sequence[int | str]],
    evaluate: Callable[[Settings], Score],
    max_trials: int,
    margin: float = 0.03,
) -> tuple[Trial, list[Trial]]:
    """Changes one setting at a time, for as long as that makes the score better by more than
    `margin`: a number along its ordered values in `space`, a name to each other one. Ends when no
    single change does, or after `max_trials` (at least 1). Returns the best trial, and all in the
    order in which they ran.
    """
    trials: list[Trial] = []

    def attempt(settings: Settings) -> Trial | None:
        """None if it would be one trial too many."""
        for trial in trials:
            if trial.settings == settings:
                return trial
        if len(trials) == max_trials:
            return None
        trials.append(Trial(settings, evaluate(settings)))
        return trials[-1]

    best = attempt(dict(start))
    assert best is not None
    improved = True
    while improved:
        improved = False
        for name, values in space.items():
            if isinstance(best.settings[name], str):
                for value in values:
                    trial = attempt(best.settings | {name: value})
                    if trial is not None and trial.score.beats(best.score, margin):
                        best, improved = trial, True
                continue
            for step in (-1, 1):
                while (index := values.index(best.settings[name]) + step) in range(len(values)):
                    trial = attempt(best.settings | {name: values[index]})
                    if trial is None or not trial.score.beats(best.score, margin):
                        break
                    best, improved = trial, True
    return best, trials
