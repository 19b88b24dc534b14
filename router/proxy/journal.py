"""What a stream has shown so far, told by its replica in comment lines that clients never see.

A replica that is asked for a journal ends its events with lines such as `: tokens 0 345,346`: the
token ids of answer 0 whose effects are wholly shown once the event is; `: begin 0 48` with the
answer's first event, for which 48 tokens of the prompt were cached, and `: end 0` with its last.
JSON holds no raw newline, so `\\n: ` is never part of an event's data. From the journal another
replica can go on where this one broke off.
"""

import dataclasses
import re
from typing import Any, Final

# Numbers are as long as they can be in earnest, so that no replica makes us count without end.
_LINE: Final = re.compile(
    rb"\n: (begin|tokens|end) (\d{1,9})(?: (\d{1,10}(?:,\d{1,10})*))?(?=\r?\n)"
)
_CREATED: Final = re.compile(rb'"created(?:_at)?":\s*(\d{1,15})(?!\d)')
_RESPONSE_ID: Final = re.compile(rb'"response":\{"id":"(resp_[\w-]{1,300})"')
_ERROR: Final = re.compile(rb'(?:^|\n\n)data: ?(\{"error":.*)\n\n', re.DOTALL)
_FAILED: Final = re.compile(rb"(?:^|\n\n)(event: .*\ndata: .*)\n: failed (.*)\n\n")
"""The same among named events: the event for the client, and the error."""
_USAGE_EVENT: Final = b'"choices":[],'
END: Final = b"data: [DONE]\n\n"
"""The last event of a stream."""


class EventSplitter:
    """Cuts a stream of server-sent events after whole events only."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        """The events that are complete with these bytes, perhaps none."""
        end = data.rfind(b"\n\n")
        if end >= 0:
            end += 2
        elif self._parts and data.startswith(b"\n") and self._parts[-1].endswith(b"\n"):
            end = 1
        else:
            if data:
                self._parts.append(data)
            return b""
        events = data if end == len(data) else data[:end]
        if self._parts:
            events = b"".join((*self._parts, events))
        self._parts = [data[end:]] if end < len(data) else []
        return events


def settled_length(events: bytes) -> int:
    """How many first bytes of whole events a journal accounts for.

    What a token shows may be several events, of which the last one has the line: before it has
    come, another replica would show the others again.
    """
    last = max(events.rfind(mark) for mark in (b"\n: ", _USAGE_EVENT, END, b'data: {"error":'))
    return 0 if last < 0 else events.find(b"\n\n", last) + 2


@dataclasses.dataclass(slots=True)
class _Answer:
    begun: bool = False
    cached_tokens: int | None = None
    token_ids: list[bytes] = dataclasses.field(default_factory=list)
    """Runs of ids, as the journal spells them."""
    finished: bool = False


class Journal:
    """The state of one stream, over all replicas that it came from."""

    def __init__(
        self, num_answers: int, n: int, wants_usage: bool, *, ends_with_answer: bool = False
    ) -> None:
        """`n` answers to each prompt; `wants_usage` if the stream is to end with its usage;
        `ends_with_answer` for the named events of one answer, which no `END` follows."""
        self._num_answers = num_answers
        self._ends_with_answer = ends_with_answer
        self._num_events = 0
        """Passed on, of named events."""
        self._answers: dict[int, _Answer] = {}
        """Those of which something was told: a client may ask for more than anybody grants."""
        self._n = n
        self._lacks_usage = wants_usage
        self._created: int | None = None
        self._response_id: str | None = None
        self.num_tokens = 0
        """Generated so far, all answers together."""
        self.cached_tokens = 0
        """Of all prompts, found in the prefix caches of the replicas where they began."""
        self.complete = False
        """Whether the end of the stream has come."""
        self.kept = False
        """Whether a replica has told anything of it."""

    @property
    def begun(self) -> bool:
        """Whether there is anything to go on from."""
        return self.kept and (self._created is not None or self._ends_with_answer)

    @property
    def may_end(self) -> bool:
        """Whether the stream may be whole when it ends now: how one ends that named its events and
        has no journal, nobody knows."""
        return self.complete or (self._ends_with_answer and not self.kept)

    @property
    def lacks_only_its_end(self) -> bool:
        """Whether nothing but `END` is left to be shown."""
        return not (self._ends_with_answer or self._lacks_usage) and self._finished

    def strip(self, events: bytes) -> bytes:
        """Takes in whole events, and returns them as clients see them.

        Raises `StreamFailed` if one of them tells an error: what the events before it show counts,
        and is in the exception.
        """
        pattern = _FAILED if self._ends_with_answer else _ERROR
        error = pattern.search(events) if b'{"error":' in events else None
        if error is not None:
            before = events[: error.start()]
            shown = self._take(before + b"\n\n") if before else b""
            event = error[1] + b"\n\n" if self._ends_with_answer else None
            raise StreamFailed(error[error.lastindex or 1], shown, event)
        return self._take(events)

    def resume(self) -> dict[str, Any]:
        """The state as the field `pagelet.resume` has it."""
        answers = [self._answers.get(index, _Answer()) for index in range(self._num_answers)]
        state: dict[str, Any] = {
            "created": self._created,
            "answers": [
                {
                    "begun": answer.begun,
                    "token_ids": _token_ids(answer.token_ids),
                    "cached_tokens": answer.cached_tokens,
                    "finished": answer.finished,
                }
                for answer in answers
            ],
        }
        if self._ends_with_answer:
            state["events"] = self._num_events
            if self._response_id is not None:
                state["response_id"] = self._response_id
        return state

    @property
    def _finished(self) -> bool:
        return sum(answer.finished for answer in self._answers.values()) == self._num_answers

    def _take(self, events: bytes) -> bytes:
        if self._created is None and (match := _CREATED.search(events)):
            self._created = int(match[1])
        if self._ends_with_answer:
            if self._num_events == 0 and (match := _RESPONSE_ID.search(events)):
                self._response_id = match[1].decode()
            self._num_events += events.count(b"\n\n")
        else:
            self.complete = self.complete or events.endswith(END)
        if self._lacks_usage and _USAGE_EVENT in events:
            self._lacks_usage = False
        if b"\n: " not in events:
            return events
        self.kept = True
        parts = _LINE.split(events)
        # [text, kind, index, ids] again and again, and a last text
        for kind, index, ids in zip(parts[1::4], parts[2::4], parts[3::4], strict=True):
            self._note(kind, int(index), ids)
        return b"".join(parts[::4])

    def _note(self, kind: bytes, index: int, ids: bytes | None) -> None:
        if index >= self._num_answers:
            return
        answer = self._answers.setdefault(index, _Answer())
        if kind == b"tokens" and ids is not None:
            answer.token_ids.append(ids)
            self.num_tokens += ids.count(b",") + 1
        elif kind == b"begin":
            answer.begun = True
            if ids is not None:
                answer.cached_tokens = int(ids)
                if index % self._n == 0:  # the n answers share their prompt
                    self.cached_tokens += answer.cached_tokens
        elif kind == b"end":
            answer.finished = True
            if self._ends_with_answer and self._finished:
                self.complete = True


def _token_ids(runs: list[bytes]) -> list[int]:
    return [int(token_id) for run in runs for token_id in run.split(b",")]


class StreamFailed(Exception):
    """The replica says, in the midst of a stream, that it cannot go on."""

    def __init__(self, error: bytes, shown: bytes, event: bytes | None = None) -> None:
        super().__init__(error.decode(errors="replace"))
        self.event = event
        """By which a client would be told, if its API has an event of its own for that."""
        self.error = error
        """The event's JSON."""
        self.shown = shown
        """Events before it, for the client."""
