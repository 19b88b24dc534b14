"""Splits what a model thinks from what it answers."""

from collections.abc import Callable, Sequence

from pagelet.agent.tools.events import Content, Event, Reasoning, held_back

BEGIN, END = "<think>", "</think>"
_SPACE = " \t\r\n"


class ReasoningSplitter:
    """Thinking stands between `<think>` and `</think>` at the beginning of an answer; with `begun`
    the prompt had the first mark already. White space around it is dropped."""

    def __init__(self, begun: bool) -> None:
        self._thinks = begun
        self._decided = begun
        self._pending = ""
        self._space = ""
        self._shown = False
        self._trims = False
        """Whether white space between thinking and answer may still come."""

    @property
    def ended(self) -> bool:
        """Whether all text to come is the answer."""
        return self._decided and not self._thinks

    @property
    def thinks(self) -> bool:
        """Whether the text so far ends in thinking."""
        return self._thinks

    def push(self, text: str) -> list[Event]:
        """What is certain with this text: thinking, and the answer's text once it is over."""
        self._pending += text
        if not self._decided:
            head = self._pending.lstrip(_SPACE)
            if BEGIN.startswith(head) and head != BEGIN:
                return []
            self._decided = True
            if head.startswith(BEGIN):
                self._thinks, self._pending = True, head.removeprefix(BEGIN)
        if not self._thinks:
            return self._answer()
        thought, mark, after = self._pending.partition(END)
        if mark:
            events = self._think(thought)
            self._thinks, self._trims, self._pending = False, True, after
            return events + self._answer()
        shown = len(thought) - held_back(thought, (END,))
        self._pending = thought[shown:]
        return self._think(thought[:shown])

    def finish(self) -> list[Event]:
        """What was held back, as the text ends here."""
        pending, self._pending = self._pending, ""
        if self._thinks:
            return self._think(pending)
        return [Content(pending)] if pending else []

    def _think(self, text: str) -> list[Event]:
        text = self._space + text
        if not self._shown:
            text = text.lstrip(_SPACE)
        kept = text.rstrip(_SPACE)
        self._space = text[len(kept) :]
        self._shown = self._shown or bool(kept)
        return [Reasoning(kept)] if kept else []

    def _answer(self) -> list[Event]:
        text, self._pending = self._pending, ""
        if self._trims:
            text = text.lstrip(_SPACE)
            self._trims = not text
        return [Content(text)] if text else []


class ThinkingCounter:
    """Counts the tokens of one answer between the marks of thinking. It goes by the tokens alone,
    so that it does not matter how they come, nor which replica had generated them."""

    def __init__(self, begun: bool, token_text: Callable[[int], tuple[str, bytes]]) -> None:
        """`begun` as in `ReasoningSplitter`; `token_text` is the tokenizer's."""
        self._splitter = ReasoningSplitter(begun)
        self._token_text = token_text
        self.num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> None:
        """Takes in the tokens that come next."""
        for token_id in token_ids:
            if self._splitter.ended:
                return
            thought = self._splitter.thinks
            self._splitter.push(self._token_text(token_id)[0])
            self.num_tokens += thought and self._splitter.thinks


def prompt_state(prompt_end: str) -> bool | None:
    """Whether a prompt that ends so ends in thinking; None if the answer may not think at all, as
    its thinking is already over."""
    tail = prompt_end.rstrip(_SPACE)
    if tail.endswith(END):
        return None
    return tail.endswith(BEGIN)
