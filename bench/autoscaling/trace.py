"""A day of requests: a wave of day and night, bursts of chats, and bursts of long documents."""

import dataclasses
import math
import random
from typing import Final

DAY: Final = 86_400.0
_STEP: Final = 60.0
"""Seconds for which the rate is constant."""
_NIGHT: Final = 0.1
"""Rate at night, of the day's highest outside of bursts."""
_BUSIEST: Final = 14 * 3600.0
_BURSTS: Final = 8
_BURST_FACTOR: Final = 2.5
_DOCUMENTS: Final = 0.1
"""Share of requests that bring a document, outside of bursts of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """One request."""

    when: float
    uncached_tokens: int
    """Of its prompt, that no cache holds."""
    kv_tokens: int
    """That it holds in the end, prompt and answer."""
    answer_tokens: int


def make_day(rate: float, seed: int, *, seconds: float = DAY) -> list[Arrival]:
    """Requests in order; `rate` a second is the highest outside of bursts. A shorter day is the
    same in fast motion."""
    rng = random.Random(seed)
    bursts = [
        (start, start + rng.uniform(300, 900), number % 2 == 1)
        for number, start in enumerate(sorted(rng.uniform(0, DAY) for _ in range(_BURSTS)))
    ]
    arrivals = []
    stretch = seconds / DAY
    steps = int(seconds / _STEP)
    for step in range(steps):
        now = step * _STEP
        of_day = now / stretch
        wave = 0.5 + 0.5 * math.cos(2 * math.pi * (of_day - _BUSIEST) / DAY)
        current, documents = rate * (_NIGHT + (1 - _NIGHT) * wave), _DOCUMENTS
        for start, end, of_documents in bursts:
            if start <= of_day < end:
                # Twice as many documents are more work than twice as many requests.
                documents = 0.5 if of_documents else documents
                current *= 1.0 if of_documents else _BURST_FACTOR
        when = now + rng.expovariate(current)
        while when < now + _STEP:
            arrivals.append(_arrival(rng, when, documents))
            when += rng.expovariate(current)
    return arrivals


def _arrival(rng: random.Random, when: float, documents: float) -> Arrival:
    answer = rng.randint(50, 400)
    if rng.random() < documents:
        prompt = uncached = rng.randint(4_000, 12_000)
    else:
        prompt = rng.randint(500, 4_000)  # a chat, whose earlier turns are cached
        uncached = rng.randint(100, 500)
    return Arrival(when, uncached, prompt + answer, answer)
