"""Conversations that are longer than the model's context, without what is oldest in them."""

from collections.abc import Awaitable, Callable, Sequence

from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import Message

_INSTRUCTIONS = ("system", "developer")


async def fitting_prompt(
    messages: Sequence[Message],
    room: int,
    render: Callable[[Sequence[Message]], Awaitable[list[int]]],
) -> list[int]:
    """The prompt of a conversation, in token ids. Where it has more than `room` tokens, as little
    of what is oldest is left out as brings it down to that (OpenAI's `truncation: "auto"`); if
    nothing does, what is left is still too long. Raises as `render` does, unless it finds more too
    long to be tokenized."""
    kept = _Shortened(messages)

    async def fitting(number: int) -> list[int] | None:
        try:
            prompt = await render(kept.without(number))
        except InvalidRequest as error:
            if error.code != "context_length_exceeded":
                raise
            return None
        return prompt if len(prompt) <= room else None

    if not kept.most:
        return await render(messages)
    if (whole := await fitting(0)) is not None:
        return whole
    too_few, enough = 0, kept.most
    prompt = await render(kept.without(enough))
    if len(prompt) > room:
        return prompt
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if (longer := await fitting(middle)) is not None:
            enough, prompt = middle, longer
        else:
            too_few = middle
    return prompt


async def can_fit(
    messages: Sequence[Message],
    room: int,
    render: Callable[[Sequence[Message]], Awaitable[list[int]]],
) -> bool:
    """Whether there is anything to leave out of a conversation, and what always stays has at most
    `room` tokens."""
    kept = _Shortened(messages)
    if not kept.most:
        return False
    try:
        return len(await render(kept.without(kept.most))) <= room
    except InvalidRequest:
        return False


class _Shortened:
    """A conversation that can go without up to `most` pieces.

    First go the turns, each a message of the user's and all that follows it up to the next one:
    templates want conversations to begin with the user, and results to follow their calls. Then, of
    the last turn, the steps: each a message of the model's and the results of its calls. The
    instructions at the beginning, the last message of the user's and the last step always stay.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        begin = next(
            (at for at, each in enumerate(messages) if each.role not in _INSTRUCTIONS),
            len(messages),
        )
        self._instructions = list(messages[:begin])
        *self._turns, last = _cut(messages[begin:], "user")
        self._asked, *self._steps = _cut(last, "assistant")
        self.most = len(self._turns) + max(0, len(self._steps) - 1)

    def without(self, number: int) -> list[Message]:
        """All but so many pieces."""
        steps = max(0, number - len(self._turns))
        pieces = [*self._turns[number:], self._asked, *self._steps[steps:]]
        return self._instructions + [message for piece in pieces for message in piece]


def _cut(messages: Sequence[Message], role: str) -> list[list[Message]]:
    """Pieces that begin with a message of that role; the first one need not."""
    pieces: list[list[Message]] = [[]]
    for message in messages:
        if message.role == role and pieces[-1]:
            pieces.append([])
        pieces[-1].append(message)
    return pieces
