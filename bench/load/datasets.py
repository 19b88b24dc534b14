"""Workloads from parameters and a seed."""

import dataclasses
from typing import Any

import numpy as np

from pagelet.bench.load.vocabulary import Vocabulary
from pagelet.bench.load.workload import Session, Turn, Workload


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and answers; with a `spread` of 0.2, uniform within 20 % around them."""

    input_len: int
    output_len: int
    spread: float = 0.0

    def __post_init__(self) -> None:
        if self.input_len < 1 or self.output_len < 1:
            raise ValueError("prompts and answers need at least one token")
        if not 0 <= self.spread < 1:
            raise ValueError(f"a spread of {self.spread} is not from 0 to less than 1")

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        """A prompt's and an answer's."""
        return self._around(self.input_len, rng), self._around(self.output_len, rng)

    def _around(self, mean: int, rng: np.random.Generator) -> int:
        low, high = int(mean * (1 - self.spread)), int(np.ceil(mean * (1 + self.spread)))
        return int(rng.integers(max(1, low), high + 1))


def random_prompts(
    vocabulary: Vocabulary, num_prompts: int, lengths: Lengths, seed: int
) -> Workload:
    """Single requests that share no prefix."""
    rng = np.random.default_rng(seed)
    sessions = []
    for _ in range(num_prompts):
        input_len, output_len = lengths.draw(rng)
        sessions.append(Session((Turn(vocabulary.draw(rng, input_len), output_len),)))
    return Workload("random", tuple(sessions), _parameters(num_prompts, lengths, seed))


def shared_prefix(
    vocabulary: Vocabulary,
    num_prompts: int,
    lengths: Lengths,
    seed: int,
    *,
    prefix_len: int,
    num_prefixes: int = 1,
    zipf: float = 0.0,
) -> Workload:
    """Single requests that begin with one of `num_prefixes` prefixes, such as system prompts, and
    go on with `lengths.input_len` tokens of their own. The i-th prefix is drawn with a weight of
    1 / i ** `zipf`; 0 means that all are equally likely."""
    rng = np.random.default_rng(seed)
    prefixes = [vocabulary.draw(rng, prefix_len) for _ in range(num_prefixes)]
    weights = 1 / np.arange(1, num_prefixes + 1) ** zipf
    sessions = []
    for _ in range(num_prompts):
        prefix = prefixes[rng.choice(num_prefixes, p=weights / weights.sum())]
        input_len, output_len = lengths.draw(rng)
        # A vocabulary's contents are all of one type.
        content = prefix + vocabulary.draw(rng, input_len)  # type: ignore[operator]
        sessions.append(Session((Turn(content, output_len),)))
    parameters = _parameters(num_prompts, lengths, seed) | {
        "prefix_len": prefix_len,
        "num_prefixes": num_prefixes,
        "zipf": zipf,
    }
    return Workload("shared-prefix", tuple(sessions), parameters)


def multi_turn(
    vocabulary: Vocabulary, num_conversations: int, lengths: Lengths, seed: int, *, turns: int
) -> Workload:
    """Conversations whose every turn adds `lengths.input_len` tokens to the history, which holds
    the server's own answers. The vocabulary must be one of text."""
    rng = np.random.default_rng(seed)
    sessions = []
    for _ in range(num_conversations):
        drawn = [lengths.draw(rng) for _ in range(turns)]
        sessions.append(
            Session(tuple(Turn(vocabulary.draw(rng, input_len), out) for input_len, out in drawn))
        )
    parameters = _parameters(num_conversations, lengths, seed) | {"turns": turns}
    return Workload("multi-turn", tuple(sessions), parameters)


def _parameters(count: int, lengths: Lengths, seed: int) -> dict[str, Any]:
    return {"sessions": count, **dataclasses.asdict(lengths), "seed": seed}
