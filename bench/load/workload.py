"""What is asked of a server: sessions of one or more requests, the same for the same seed."""

import dataclasses
from collections.abc import Sequence
from typing import Any

Message = dict[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
"""Of a request: text, token ids, or the messages of a chat."""
Content = str | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one request adds to its session, and how many tokens it asks for."""

    content: Content
    max_tokens: int
    pause: float = 0.0
    """Seconds from the answer before it until it is sent."""


@dataclasses.dataclass(frozen=True)
class Session:
    """Requests that follow one another, each with the history of those before it: a conversation,
    or a single request."""

    turns: tuple[Turn, ...]
    arrival: float | None = None
    """Seconds after the start, where the workload says itself when requests come."""
    label: str = ""
    """Sessions of the same label have figures of their own."""
    scripted: bool = False
    """Whether a turn's content is its whole prompt, with answers to the turns before it that the
    workload made up: whatever the server answers, it is asked the same."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sessions, and the parameters that they were made by."""

    name: str
    sessions: tuple[Session, ...]
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_requests(self) -> int:
        """Of all sessions."""
        return sum(len(session.turns) for session in self.sessions)

    @property
    def timed(self) -> bool:
        """Whether it says itself when requests come."""
        return all(session.arrival is not None for session in self.sessions)


class History:
    """A session so far: from its turns and the server's answers to the next prompt."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._messages: list[Message] = []
        self._text = ""

    def prompt(self, turn: Turn) -> Prompt:
        """The prompt of the next request. Token ids go alone: an answer's ids are not told."""
        content = turn.content
        if isinstance(content, tuple):
            if self._chat or self._messages or self._text:
                raise ValueError("chats and sessions of several turns need text, not token ids")
            return content
        if self._chat:
            self._messages.append({"role": "user", "content": content.strip()})
            return list(self._messages)
        self._text += content
        return self._text

    def answered(self, text: str) -> None:
        """Takes up the server's answer to the last prompt."""
        if self._chat:
            self._messages.append({"role": "assistant", "content": text})
        else:
            self._text += text
