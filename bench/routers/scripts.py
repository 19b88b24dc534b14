"""Traces as texts to send: the same requests for every router, but in other words each time, so
that no run finds in a cache what the run before it left there."""

import random
from collections.abc import Sequence

from pagelet.bench.load.workload import Session, Turn, Workload
from pagelet.bench.routing.traces import VOCABULARY, Item


def as_workload(name: str, items: Sequence[Item], words: Sequence[str], run: int) -> Workload:
    """Sessions of prompts whose token ids are spelled as words of one token each, by a code that
    differs from `run` to `run`. Later turns have the trace's answers in their prompts, not the
    server's."""
    code = random.Random(run).choices([f" {word}" for word in words], k=VOCABULARY)
    turns: dict[int, list[Turn]] = {}
    first_of: dict[int, Item] = {}
    for item in sorted(items, key=_depth):
        first = item if item.after is None else first_of[id(item.after)]
        first_of[id(item)] = first
        text = "".join(code[token] for token in item.prompt())
        pause = 0.0 if item.after is None else item.arrival
        turns.setdefault(id(first), []).append(Turn(text, len(item.answer), pause))
    sessions = [
        Session(tuple(turns[id(item)]), item.arrival, scripted=True)
        for item in items
        if item.after is None
    ]
    return Workload(name, tuple(sessions), {"run": run})


def _depth(item: Item) -> int:
    depth = 0
    while item.after is not None:
        item, depth = item.after, depth + 1
    return depth
