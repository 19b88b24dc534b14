"""Server-sent events out of a byte stream (WHATWG HTML, section 9.2), as far as LLM servers use
them: the data of each event, without names, ids or reconnection times."""

_END_OF_EVENT = b"\n\n"


class EventParser:
    """Feed it a stream's bytes as they come, cut anywhere."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes. Comments, which servers send to keep a
        connection open, and events without data are left out."""
        data = self._pending + data
        if b"\r" in data:  # a last \r stays as it is until the next byte tells what it is
            data = data.replace(b"\r\n", b"\n")
        *events, self._pending = data.split(_END_OF_EVENT)
        payloads = (_payload(event) for event in events)
        return [payload for payload in payloads if payload is not None]

    @property
    def pending(self) -> bytes:
        """The beginning of an event whose end has not come."""
        return self._pending


def _payload(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(lines) if lines else None
