"""Passing on one stream of server-sent events, from one replica after the other."""

from collections.abc import AsyncIterator
from typing import Final

from pagelet.router.proxy.journal import EventSplitter, Journal, StreamFailed, settled_length
from pagelet.router.upstream.client import AnswerTooLarge, Response
from pagelet.router.upstream.connection import ConnectionLost, UpstreamError

_END_SECONDS: Final = 1.0
"""From the last event to the end of the answer, after which its connection can be used again."""
_MOST_HELD: Final = 64 << 20
"""Bytes that wait for the end of their event, or for the journal's word on it."""


async def journaled_events(
    response: Response, journal: Journal, idle_timeout: float
) -> AsyncIterator[bytes]:
    """A replica's events as clients see them, until the stream is complete.

    Raises `StreamFailed` and `UpstreamError`: then the stream can go on from the journal.
    """
    splitter, unsettled, held = EventSplitter(), b"", 0
    while True:
        try:
            data = await response.read(_END_SECONDS if journal.complete else idle_timeout)
        except UpstreamError:
            if journal.complete:
                return
            raise
        if not data:
            if journal.may_end:
                return
            raise ConnectionLost("the stream ended without [DONE]", begun=True)
        held += len(data)
        if held > _MOST_HELD:
            raise AnswerTooLarge(f"an event has more than {_MOST_HELD} bytes")
        events = unsettled + splitter.feed(data)
        kept = journal.kept or b"\n: " in events
        settled = settled_length(events) if kept else len(events)
        events, unsettled = events[:settled], events[settled:]
        if not events:
            continue
        held = 0
        try:
            shown = journal.strip(events)
        except StreamFailed as failure:
            if failure.shown:
                yield failure.shown
            raise
        yield shown


async def plain_events(response: Response, idle_timeout: float) -> AsyncIterator[bytes]:
    """The bytes of a stream whose server keeps no journal. Raises `UpstreamError`."""
    while data := await response.read(idle_timeout):
        yield data
