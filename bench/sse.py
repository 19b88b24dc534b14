"""Counts the events of a streamed HTTP/1.1 answer at about a microsecond an event.

A load generator that shares two cores with the server must not cost much itself, so nothing is
decoded while the stream runs: the chunked transfer coding is taken off, events are counted by
their blank lines, and only the end of the stream is kept, for its usage and its `[DONE]`.
"""

import json
from typing import Any

_TAIL_BYTES = 4096
_END_OF_EVENT = b"\n\n"


class BadStream(ValueError):
    """The bytes are no chunked HTTP answer of an event stream that ended well."""


class StreamCounter:
    """Feed it the bytes of one HTTP answer as they come, cut anywhere."""

    def __init__(self) -> None:
        self.num_events = 0
        self.finished = False
        self._in_body = False
        self._pending = b""
        self._tail = b""

    def feed(self, data: bytes) -> int:
        """Takes the next bytes; returns how many events they completed. Raises `BadStream`."""
        data = self._pending + data if self._pending else data
        if not self._in_body:
            head, separator, data = data.partition(b"\r\n\r\n")
            if not separator:
                self._pending = head
                return 0
            self._start_body(head, data)
        payload = self._take_chunks(data)
        if not payload:
            return 0
        # An event may end across two payloads: look at one byte of what came before.
        before = self._tail[-1:] if self._tail[-2:] != _END_OF_EVENT else b""
        count = (before + payload).count(_END_OF_EVENT)
        self._tail = (self._tail + payload)[-_TAIL_BYTES:]
        self.num_events += count
        return count

    def usage(self) -> dict[str, Any]:
        """The usage that the last event before `[DONE]` carries. Raises `BadStream`."""
        *_, last, done, rest = [b"", b"", *self._tail.split(_END_OF_EVENT)]
        if not self.finished or done != b"data: [DONE]" or rest:
            raise BadStream(f"the stream did not end with [DONE] but with {self._tail[-300:]!r}")
        try:
            usage = json.loads(last.removeprefix(b"data: "))["usage"]
        except (ValueError, KeyError) as error:
            raise BadStream(f"no usage in the last event: {last[-300:]!r}") from error
        if not isinstance(usage, dict):
            raise BadStream(f"no usage in the last event: {last[-300:]!r}")
        return usage

    def _start_body(self, head: bytes, body: bytes) -> None:
        status = head.split(b"\r\n", 1)[0]
        if b" 200 " not in status + b" ":
            raise BadStream(f"{status.decode(errors='replace')}: {body[:500]!r}")
        if b"transfer-encoding: chunked" not in head.lower():
            raise BadStream("the answer is not chunked, so it is no stream")
        self._in_body = True

    def _take_chunks(self, data: bytes) -> bytes:
        """The payload of the complete chunks in `data`; keeps the rest for later."""
        payloads = []
        start = 0
        while (line_end := data.find(b"\r\n", start)) >= 0:
            size = int(data[start:line_end], 16)
            payload_end = line_end + 2 + size
            if len(data) < payload_end + 2:
                break
            payloads.append(data[line_end + 2 : payload_end])
            start = payload_end + 2
            if size == 0:
                self.finished = True
                break
        self._pending = data[start:]
        return payloads[0] if len(payloads) == 1 else b"".join(payloads)
