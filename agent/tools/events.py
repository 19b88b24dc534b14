"""What an answer's text turns out to be, piece by piece."""

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thinks before it answers."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool; its arguments follow."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallArguments:
    """A part of the last call's arguments: all parts together are JSON."""

    text: str


Event = Content | Reasoning | CallBegin | CallArguments


class ToolParser(Protocol):
    """The state of one answer. What it says depends on the text alone and not on how it is cut:
    events of the same kind that follow one another are to be taken together."""

    def push(self, text: str) -> list[Event]:
        """What is certain with this text and was not before."""
        ...

    def finish(self) -> list[Event]:
        """What was held back, as the text ends here."""
        ...


def held_back(text: str, markers: tuple[str, ...]) -> int:
    """Characters at the end of a text that may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
