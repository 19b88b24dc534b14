"""Stop strings in a stream of text.

One Aho-Corasick automaton (Aho and Corasick, 1975) looks for all of a request's stop strings at
once. Its state after a character is the longest end of the text that begins some stop string: just
what must be held back. So each character is looked at once, whatever the stop strings' lengths,
and the result does not depend on how the text arrives.
"""

import functools
import re
from collections import deque


class StopStrings:
    """The automaton of a set of stop strings; immutable, shared by all texts that use it."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self.children: list[dict[str, int]] = [{}]
        self.fallback = [0]
        """The state of the next shorter end of the text that begins a stop string."""
        self.matched = [0]
        """Length of the longest stop string that ends here, 0 for none."""
        depth = [0]
        for string in stop:
            state = 0
            for char in string:
                child = self.children[state].get(char)
                if child is None:
                    child = self._add_state()
                    depth.append(depth[state] + 1)
                    self.children[state][char] = child
                state = child
            self.matched[state] = len(string)
        self._link_fallbacks()
        self.held = depth
        """Characters to hold back in a state: the longest proper beginning of a stop string."""
        for state in self._breadth_first():
            if not self.children[state]:
                self.held[state] = self.held[self.fallback[state]]
        first_characters = "".join(map(re.escape, self.children[0]))
        self.find_start = re.compile(f"[{first_characters}]").search

    def _add_state(self) -> int:
        self.children.append({})
        self.fallback.append(0)
        self.matched.append(0)
        return len(self.children) - 1

    def _breadth_first(self) -> list[int]:
        order: list[int] = []
        queue = deque(self.children[0].values())
        while queue:
            state = queue.popleft()
            order.append(state)
            queue.extend(self.children[state].values())
        return order

    def _link_fallbacks(self) -> None:
        for parent in [0, *self._breadth_first()]:
            for char, state in self.children[parent].items():
                if parent:
                    self.fallback[state] = self.step(self.fallback[parent], char)
                # A longer stop string that ends here wins, so that nothing of it is shown.
                self.matched[state] = self.matched[state] or self.matched[self.fallback[state]]

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while True:
            child = self.children[state].get(char)
            if child is not None:
                return child
            if not state:
                return 0
            state = self.fallback[state]


@functools.lru_cache(maxsize=128)
def compile_stop_strings(stop: tuple[str, ...]) -> StopStrings:
    """The automaton of `stop`, none of which may be empty; clients repeat the same few."""
    return StopStrings(stop)


class StopMatcher:
    """Passes on the text of one answer up to its first stop string.

    The first is the one that ends first, and of several that end there the longest: the only choice
    that is the same for every way to cut the text. What may be the beginning of a stop string is
    held back until it is known not to be.
    """

    matched: str | None = None
    """The stop string that was found."""

    def __init__(self, stop: tuple[str, ...], include_in_output: bool = False) -> None:
        self._automaton = compile_stop_strings(stop)
        self._include = include_in_output
        self._state = 0
        self._held = ""

    def push(self, text: str, armed: bool = True) -> str:
        """The text that may be shown now. Once `matched` is set there will be no more.

        Stop strings that end in this text are passed over unless `armed` (for `min_tokens`).
        """
        automaton, state = self._automaton, self._state
        position, end = 0, len(text)
        while position < end:
            if not state:
                start = automaton.find_start(text, position)
                if start is None:
                    break
                position = start.start()
            state = automaton.step(state, text[position])
            position += 1
            if armed and automaton.matched[state]:
                return self._stop(self._held + text[:position], automaton.matched[state])
        self._state = state
        text = self._held + text
        shown = len(text) - automaton.held[state]
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """What was held back, as the text ends here."""
        held, self._held = self._held, ""
        return held

    def _stop(self, text: str, length: int) -> str:
        self.matched = text[len(text) - length :]
        self._held = ""
        return text if self._include else text[: len(text) - length]
