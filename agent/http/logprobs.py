"""Logprobs in the shapes of OpenAI's two APIs, and of vLLM's extension for prompts."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from pagelet.engine.outputs import Logprob, PositionLogprobs
from pagelet.protocol.openai.chat import ChoiceLogprobs, TokenLogprob, TopLogprob
from pagelet.protocol.openai.common import PromptLogprob, PromptLogprobs
from pagelet.protocol.openai.completions import CompletionLogprobs


def named_by_id(position: PositionLogprobs) -> PositionLogprobs:
    """With `token_id:5` as the text of its tokens, which tells those of equal text apart."""

    def named(candidate: Logprob) -> Logprob:
        return dataclasses.replace(candidate, token=f"token_id:{candidate.token_id}")

    return PositionLogprobs(named(position.chosen), list(map(named, position.top)))


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> ChoiceLogprobs:
    """One entry a token, with its exact bytes."""
    return ChoiceLogprobs(
        content=[
            TokenLogprob(
                token=position.chosen.token,
                logprob=position.chosen.logprob,
                bytes=list(position.chosen.token_bytes),
                top_logprobs=[_top_logprob(candidate) for candidate in position.top],
            )
            for position in positions
        ]
    )


def _top_logprob(candidate: Logprob) -> TopLogprob:
    return TopLogprob(
        token=candidate.token, logprob=candidate.logprob, bytes=list(candidate.token_bytes)
    )


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> PromptLogprobs:
    """One entry a prompt token: its candidates by token id, the token itself among them."""
    return [None if position is None else _candidates(position) for position in positions]


def _candidates(position: PositionLogprobs) -> dict[int, PromptLogprob]:
    candidates = [*position.top, position.chosen]  # the chosen one knows its true rank
    return {
        candidate.token_id: PromptLogprob(
            logprob=candidate.logprob, rank=candidate.rank, decoded_token=candidate.token
        )
        for candidate in candidates
    }


class LegacyLogprobs:
    """The parallel lists of the completions API, with offsets into the text.

    Offsets are counted from the tokens' bytes, so that a token that is part of a character has
    that character's offset. Special tokens that the text leaves out have no width.
    """

    def __init__(self, hidden_ids: Collection[int]) -> None:
        self._hidden = hidden_ids
        self._offset = 0

    def convert(self, positions: Sequence[PositionLogprobs]) -> CompletionLogprobs:
        """Of tokens of the answer."""
        lists = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for position in positions:
            chosen = position.chosen
            self._append(lists, chosen.token_id, chosen.token, chosen.token_bytes)
            lists.token_logprobs.append(chosen.logprob)
            top = {candidate.token: candidate.logprob for candidate in position.top}
            lists.top_logprobs.append(top | {chosen.token: chosen.logprob})
        return lists

    def skip(self, text_length: int, tokens: Iterable[tuple[int, bytes]]) -> None:
        """An echoed prompt of `text_length` characters and tokens (id, bytes) of the answer were
        converted elsewhere."""
        self._offset = text_length
        for token_id, data in tokens:
            self._advance(token_id, data)

    def convert_prompt(
        self,
        first: tuple[int, str, bytes],
        positions: Sequence[PositionLogprobs | None],
        text_length: int,
    ) -> CompletionLogprobs:
        """Of an echoed prompt of `text_length` characters, whose first token (id, text, bytes) has
        no logprob, as nothing precedes it."""
        start = CompletionLogprobs(
            tokens=[], token_logprobs=[None], top_logprobs=[None], text_offset=[]
        )
        self._append(start, *first)
        rest = self.convert([position for position in positions[1:] if position is not None])
        self._offset = text_length
        return start.extended(rest)

    def _append(self, lists: CompletionLogprobs, token_id: int, text: str, data: bytes) -> None:
        continues = bool(data) and _continues(data[0]) and self._offset > 0
        lists.tokens.append(text)
        lists.text_offset.append(self._offset - continues)
        self._advance(token_id, data)

    def _advance(self, token_id: int, data: bytes) -> None:
        if token_id not in self._hidden:
            self._offset += sum(not _continues(byte) for byte in data)


def _continues(byte: int) -> bool:
    """Whether a byte of UTF-8 belongs to a character that began before it."""
    return byte & 0xC0 == 0x80
