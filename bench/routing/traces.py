"""Requests as they come to a router: who shares which prefix with whom, and when.

Arrivals are Poisson. The rate of a trace is a share of what the replicas could compute if every
prefix were computed once and never again (`ideal_tokens`), with every step full.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

VOCABULARY = 32_000
WARM_UP = 10.0
"""Seconds of a trace that are not measured."""


@dataclasses.dataclass(slots=True)
class Item:
    """One request of a trace."""

    arrival: float
    """Seconds from the start; of a later turn, from the end of the turn before it."""
    parts: list[list[int]]
    """Token ids of the prompt, in pieces that items share."""
    answer: list[int]
    """What the model will say."""
    ideal_tokens: int
    """Tokens to compute, prompt and answer, if each prefix is computed once."""
    session: str | None = None
    after: "Item | None" = None
    """The turn before this one."""

    def prompt(self) -> list[int]:
        """The whole prompt."""
        return list(itertools.chain.from_iterable(self.parts))

    @property
    def num_prompt_tokens(self) -> int:
        """Of the whole prompt."""
        return sum(map(len, self.parts))


@dataclasses.dataclass(frozen=True)
class Trace:
    """A way of making items: `make(rng, seconds, tokens_per_second)` has them in any order."""

    name: str
    about: str
    make: Callable[[random.Random, float, float], list[Item]]


def _tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(VOCABULARY), k=count)


def _between(rng: random.Random, low: int, high: int) -> list[int]:
    return _tokens(rng, rng.randint(low, high))


def _poisson(
    rng: random.Random, rate: float, seconds: float, start: float = 0.0
) -> Iterator[float]:
    if rate <= 0:
        raise ValueError("the trace itself is more than the replicas could compute: add some")
    now = start + rng.expovariate(rate)
    while now < start + seconds:
        yield now
        now += rng.expovariate(rate)


def _request(rng: random.Random, arrival: float, prefix: list[int]) -> Item:
    """A prefix, something of its own, and an answer."""
    own, answer = _between(rng, 64, 256), _between(rng, 8, 32)
    return Item(arrival, [prefix, own], answer, len(own) + len(answer))


_OWN_TOKENS = 160 + 20
"""What a `_request` computes on average without its prefix."""


def _shared_prefix(rng: random.Random, seconds: float, capacity: float) -> list[Item]:
    prefixes = [_tokens(rng, 1024) for _ in range(50)]
    weights = [1 / rank for rank in range(1, len(prefixes) + 1)]
    return [
        _request(rng, arrival, rng.choices(prefixes, weights)[0])
        for arrival in _poisson(rng, capacity / _OWN_TOKENS, seconds)
    ]


def _multi_turn(rng: random.Random, seconds: float, capacity: float) -> list[Item]:
    """A second passes between an answer and the next turn, and the whole conversation so far comes
    again."""
    items = []
    turns, mean_turn = 6, 260 + 32
    for number, start in enumerate(_poisson(rng, capacity / (turns * mean_turn), seconds)):
        history: list[list[int]] = []
        before = None
        for _ in range(turns):
            own, answer = _between(rng, 80, 440), _between(rng, 16, 48)
            history = [*history, own]
            arrival = start if before is None else rng.expovariate(1.0)
            item = Item(
                arrival, history, answer, len(own) + len(answer), f"session-{number}", before
            )
            items.append(item)
            history, before = [*history, answer], item
    return items


def _nothing_shared(rng: random.Random, seconds: float, capacity: float) -> list[Item]:
    items = []
    for arrival in _poisson(rng, capacity / (544 + 20), seconds):
        own, answer = _between(rng, 64, 1024), _between(rng, 8, 32)
        items.append(Item(arrival, [own], answer, len(own) + len(answer)))
    return items


def _hot_prefix(rng: random.Random, seconds: float, capacity: float) -> list[Item]:
    """Requests that all begin alike are a third of the work, but come in two fifths of the time,
    on top of others that have nothing in common."""
    hot = _tokens(rng, 1024)
    items = _nothing_shared(rng, seconds, 2 / 3 * capacity)
    every, lasts = 5.0, 2.0
    rate = capacity / 3 * every / lasts / _OWN_TOKENS
    for number in range(int(seconds / every)):
        start = number * every + rng.uniform(0, every - lasts)
        items += [_request(rng, at, hot) for at in _poisson(rng, rate, lasts, start)]
    return items


def _come_and_go(rng: random.Random, seconds: float, capacity: float) -> list[Item]:
    """Two new prefixes a second, each asked for during ten seconds, then never again."""
    items = []
    births, lifetime = 2.0, 10.0
    uses = (capacity / births - 1024) / _OWN_TOKENS
    for born in _poisson(rng, births, seconds):
        prefix = _tokens(rng, 1024)
        arrivals = _poisson(rng, uses / lifetime, lifetime, born)
        items += [_request(rng, arrival, prefix) for arrival in arrivals]
    return items


TRACES: Sequence[Trace] = (
    Trace("shared-prefix", "50 prefixes of 1,024 tokens, Zipf", _shared_prefix),
    Trace("multi-turn", "conversations of 6 turns", _multi_turn),
    Trace("hot-prefix", "bursts of one prefix of 1,024 tokens", _hot_prefix),
    Trace("come-and-go", "prefixes that live for 10 seconds", _come_and_go),
    Trace("nothing-shared", "prompts that have nothing in common", _nothing_shared),
)


def make_items(
    trace: Trace, seed: int, seconds: float, share: float, tokens_per_second: float
) -> list[Item]:
    """The items of a trace in the order of arrival (later turns in the order of their first), at a
    `share` of what replicas of `tokens_per_second` together could ideally compute.

    `WARM_UP` seconds at half the rate come first, in which caches fill.
    """
    rng = random.Random(f"{trace.name} {seed}")
    items = trace.make(rng, WARM_UP + seconds, share * tokens_per_second)
    dropped = {
        id(item)
        for item in items
        if item.after is None and item.arrival < WARM_UP and rng.random() < 0.5
    }
    kept = [item for item in items if id(_first_turn(item)) not in dropped]
    return sorted(kept, key=lambda item: _first_turn(item).arrival)


def _first_turn(item: Item) -> Item:
    while item.after is not None:
        item = item.after
    return item
