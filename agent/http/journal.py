"""The journal of a stream: comment lines from which a router can have it continued elsewhere.

A comment line begins with a colon, and clients of server-sent events skip it. Each stands at the
end of the event whose text it belongs to: `: begin I C` with the first event of answer I, to whose
prompt C tokens were found in the prefix cache, `: end I` with its finish reason, and
`: tokens I 345,346` with the tokens that are wholly shown once this event is. Tokens that show
nothing yet go with the next event.

Responses and messages have one answer, and close their items, tell the usage and end with its last
token. All of that is one step of their journal: what has come of it without its line is made again.
"""

import time
from collections.abc import Callable, Iterable

from pagelet.agent.http.event_stream import Chunks
from pagelet.engine.outputs import RequestOutput
from pagelet.protocol.openai.errors import ApiError, ErrorResponse
from pagelet.protocol.openai.routing import Resume, RouterHints

_END_OF_EVENT = b"\n\n"
ChoiceIndex = Callable[[int, int], int]
"""From the number of a prompt and which of its n answers it is, to its place in the response."""


def journaled(chunks: Chunks, hints: RouterHints, choice_index: ChoiceIndex) -> Chunks:
    """`chunks`, with a journal if the router asked for one."""
    if not hints.journal:
        return chunks
    answers = hints.resume.answers if hints.resume is not None else ()
    begun = [index for index, answer in enumerate(answers) if answer.begun]
    return JournaledChunks(chunks, choice_index, begun)


def began(hints: RouterHints) -> int:
    """When the stream began, here or at another replica, in seconds since 1970."""
    created = None if hints.resume is None else hints.resume.created
    return int(time.time()) if created is None else created


def failed(event: bytes, error: ApiError) -> bytes:
    """How a journaled stream of named events ends that cannot go on here: with its API's own event,
    for a client, and the error for the router, which may do without both."""
    return b"%b: failed %b\n\n" % (event[:-1], ErrorResponse(error.detail).encode())


class JournaledChunks:
    """`chunks` with a journal; the answers `begun` had their first event elsewhere."""

    def __init__(
        self,
        chunks: Chunks,
        choice_index: ChoiceIndex,
        begun: Iterable[int] = (),
    ) -> None:
        self._chunks = chunks
        self._choice_index = choice_index
        self._begun = set(begun)
        self._unshown: dict[int, list[int]] = {}

    def encode(self, number: int, output: RequestOutput) -> bytes:
        """See `Chunks`."""
        events = self._chunks.encode(number, output)
        index = self._choice_index(number, output.index)
        token_ids = output.token_ids
        if not events:
            self._unshown.setdefault(index, []).extend(token_ids)
            return b""
        if index in self._unshown:
            token_ids = self._unshown.pop(index) + token_ids
        if index not in self._begun:
            self._begun.add(index)
            first, _, rest = events.partition(_END_OF_EVENT)
            begin = b"begin %d %d" % (index, output.num_cached_tokens)
            events = b"%b\n: %b\n\n%b" % (first, begin, rest)
        # The last of these events has the delta's text, and ends with an empty line.
        if len(token_ids) == 1 and output.finish_reason is None:  # nearly always
            return b"%b: tokens %d %d\n\n" % (events[:-1], index, token_ids[0])
        lines = b""
        if token_ids:
            lines = b": tokens %d %b\n" % (index, ",".join(map(str, token_ids)).encode())
        if output.finish_reason is not None:
            lines += b": end %d\n" % index
        return events[:-1] + lines + b"\n"

    def end(self) -> bytes:
        """See `Chunks`."""
        return self._chunks.end()


class JournaledItems(JournaledChunks):
    """The events of one answer, their end included, with a journal."""

    def __init__(self, events: Chunks, resume: Resume | None) -> None:
        begun = resume is not None and resume.answers[0].begun
        super().__init__(_EndsAtOnce(events), lambda number, index: 0, [0] if begun else ())


class _EndsAtOnce:
    """Events whose end comes with the last delta of their answer."""

    def __init__(self, events: Chunks) -> None:
        self._events = events

    def encode(self, number: int, output: RequestOutput) -> bytes:
        """See `Chunks`."""
        events = self._events.encode(number, output)
        return events if output.finish_reason is None else events + self._events.end()

    def end(self) -> bytes:
        """See `Chunks`."""
        return b""
