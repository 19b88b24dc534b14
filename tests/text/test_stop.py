"""Stop strings: the same text and the same stop for every way to cut the stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.text.stop import StopMatcher, StopStrings

LETTERS = st.text("ab🙂", max_size=30)
STOPS = st.lists(st.text("ab🙂", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def reference(
    text: str, stop: tuple[str, ...], include: bool, unarmed: int
) -> tuple[str, str | None]:
    """The definition: the match that ends first, the longest of those that end there."""
    for end in range(unarmed + 1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def run(
    chunks: list[tuple[str, bool]], stop: tuple[str, ...], include: bool
) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stop, include)
    deltas = []
    for chunk, armed in chunks:
        deltas.append(matcher.push(chunk, armed))
        if matcher.matched is not None:
            return deltas, matcher.matched
    return [*deltas, matcher.finish()], None


def cut(text: str, sizes: list[int]) -> list[str]:
    chunks = []
    for size in sizes:
        chunks.append(text[:size])
        text = text[size:]
    return [*chunks, text]


@given(LETTERS, STOPS, st.booleans(), st.lists(st.integers(0, 4), max_size=20))
def test_any_chunking(text: str, stop: tuple[str, ...], include: bool, sizes: list[int]) -> None:
    deltas, matched = run([(chunk, True) for chunk in cut(text, sizes)], stop, include)
    assert ("".join(deltas), matched) == reference(text, stop, include, 0)


@given(LETTERS, LETTERS, STOPS, st.lists(st.integers(0, 4), max_size=9))
def test_unarmed_text_may_hold_stop_strings(
    before: str, after: str, stop: tuple[str, ...], sizes: list[int]
) -> None:
    chunks = [(chunk, False) for chunk in cut(before, sizes)]
    chunks += [(chunk, True) for chunk in cut(after, sizes)]
    deltas, matched = run(chunks, stop, False)
    text, expected = reference(before + after, stop, False, len(before))
    assert ("".join(deltas), matched) == (text, expected)


@given(LETTERS, STOPS)
def test_holds_back_only_what_may_begin_a_stop_string(text: str, stop: tuple[str, ...]) -> None:
    matcher = StopMatcher(stop)
    shown = ""
    for i, char in enumerate(text):
        shown += matcher.push(char)
        if matcher.matched is not None:
            return
        seen = text[: i + 1]
        beginnings = {s[:n] for s in stop for n in range(len(s))}
        longest = max((b for b in beginnings if seen.endswith(b)), key=len)
        assert shown == seen[: len(seen) - len(longest)]


def test_regular_expression_characters_are_plain() -> None:
    for stop in ("]", "^a", "\\", "-", "[", ".*"):
        matcher = StopMatcher((stop,))
        assert matcher.push(f"x y{stop}z") == "x y"
        assert matcher.matched == stop


def test_each_character_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear even for the worst text: one that nearly matches a long stop string everywhere."""
    steps = 0
    step = StopStrings.step

    def counting(self: StopStrings, state: int, char: str) -> int:
        nonlocal steps
        steps += 1
        return step(self, state, char)

    matcher = StopMatcher(("a" * 500 + "b", "c" + "a" * 300))
    monkeypatch.setattr(StopStrings, "step", counting)
    shown = "".join(matcher.push("a" * 10) for _ in range(200))
    assert steps == 2000
    assert shown + matcher.finish() == "a" * 2000


def test_text_without_a_first_character_costs_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = StopMatcher(("</s>",))
    monkeypatch.setattr(StopStrings, "step", None)
    assert matcher.push("ordinary text " * 100) == "ordinary text " * 100
