"""Length-prefixed msgpack frames over a stream socket: how all processes of a replica talk.

A frame is a 4-byte little-endian length and one msgpack value. The end of the stream between two
frames is a clean end; inside of a frame it means that the other side died while it was writing.
"""

import socket
from typing import Any, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES = 256 << 20
_PREFIX_BYTES = 4
_encoder = msgspec.msgpack.Encoder()

T = TypeVar("T")


class FrameTooLarge(ValueError):
    """A frame is larger than `MAX_FRAME_BYTES`: a broken peer, or bytes that are no frames."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a frame of {size} bytes is over the limit of {MAX_FRAME_BYTES} bytes")


def encode_frame(obj: Any) -> bytearray:
    """The bytes of one frame. Raises `FrameTooLarge`."""
    buffer = bytearray(_PREFIX_BYTES)
    _encoder.encode_into(obj, buffer, _PREFIX_BYTES)
    size = len(buffer) - _PREFIX_BYTES
    if size > MAX_FRAME_BYTES:
        raise FrameTooLarge(size)
    buffer[:_PREFIX_BYTES] = size.to_bytes(_PREFIX_BYTES, "little")
    return buffer


def send_frame(sock: socket.socket, obj: Any) -> None:
    """Sends one frame and blocks until all of it is with the kernel."""
    sock.sendall(encode_frame(obj))


def recv_frame(sock: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """Blocks for one frame.

    Raises `EOFError` at a clean end, `ConnectionError` at an end inside of a frame,
    `FrameTooLarge`, and `msgspec.DecodeError` for bytes that the decoder refuses.
    """
    first = sock.recv(_PREFIX_BYTES)
    if not first:
        raise EOFError("the other side closed the connection")
    prefix = first + _recv_exactly(sock, _PREFIX_BYTES - len(first))
    return decoder.decode(_recv_exactly(sock, _checked_size(prefix)))


class FrameReader(Generic[T]):
    """Cuts a byte stream into frames without blocking, for event loops."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Takes the next bytes of the stream and returns the values of the frames that they
        complete. Raises as `recv_frame` does; the stream cannot be read on after an error."""
        self._buffer += data
        values, start = [], 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= _PREFIX_BYTES:
                body = start + _PREFIX_BYTES
                end = body + _checked_size(view[start:body])
                if end > len(view):
                    break
                values.append(self._decoder.decode(view[body:end]))
                start = end
        del self._buffer[:start]
        return values

    @property
    def pending(self) -> bool:
        """Whether the stream stands inside of a frame; at its end this means that it was cut."""
        return bool(self._buffer)


def _checked_size(prefix: bytes | memoryview) -> int:
    size = int.from_bytes(prefix, "little")
    if size > MAX_FRAME_BYTES:
        raise FrameTooLarge(size)
    return size


def _recv_exactly(sock: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    with memoryview(buffer) as view:
        received = 0
        while received < size:
            count = sock.recv_into(view[received:])
            if count == 0:
                raise ConnectionError("the connection ended inside of a frame")
            received += count
    return buffer
