"""The other workers of a router: the kernel gives a connection to any of them, so whoever is asked
for metrics, or to explain a request, asks the others too.

They meet at abstract Unix sockets, which need no writable file system and vanish with a worker, and
which the kernel tells the peer's user of: another user's process gets no answer.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

import msgspec

from pagelet.process.frames import FrameReader, encode_frame

_TIMEOUT: Final = 2.0
_READ_BYTES: Final = 1 << 16
_PEER: Final = struct.Struct("3i")  # pid, user, group

_log = logging.getLogger(__name__)


class MetricsQuestion(msgspec.Struct, tag="metrics"):
    """A worker's metrics, as text."""


class ExplainQuestion(msgspec.Struct, tag="explain"):
    """The explanation of a request, if its tenant or an admin asks."""

    request_id: str
    tenant: str
    admin: bool


T = TypeVar("T")
Question = MetricsQuestion | ExplainQuestion
Answer = bytes | None


class Siblings:
    """What one worker, number `worker` of `num_workers`, asks the others and answers them."""

    def __init__(self, token: str, worker: int, num_workers: int) -> None:
        """`token` is the same for all workers of a router, and no other router's."""
        self._names = [f"\0pagelet-router-{token}-{number}" for number in range(num_workers)]
        self._worker = worker

    @contextlib.asynccontextmanager
    async def answering(self, answer: Callable[[Question], Answer]) -> AsyncIterator[None]:
        """Answers the others until left."""
        if len(self._names) == 1:
            yield
            return

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if _is_own_user(writer):
                    question = await _read(reader, _questions)
                    writer.write(encode_frame(answer(question)))
                    await writer.drain()
            except (OSError, EOFError, msgspec.MsgspecError, ValueError) as error:
                _log.debug("a worker's question got no answer: %s", error)
            finally:
                writer.close()

        with socket.socket(socket.AF_UNIX) as listener:
            listener.setblocking(False)
            listener.bind(self._names[self._worker])
            async with await asyncio.start_unix_server(serve, sock=listener):
                yield

    async def ask(self, question: Question) -> list[bytes]:
        """The answers of all others that have one, and have it in time."""
        others = [name for number, name in enumerate(self._names) if number != self._worker]
        answers = await asyncio.gather(*(self._ask(name, question) for name in others))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, name: str, question: Question) -> Answer:
        try:
            async with asyncio.timeout(_TIMEOUT):
                reader, writer = await _connect(name)
                try:
                    writer.write(encode_frame(question))
                    return await _read(reader, _answers)
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError, ValueError) as error:
            _log.warning("a worker does not answer the others: %s", error or type(error).__name__)
            return None


ALONE: Final = Siblings("", 0, 1)
"""For the one worker of a router."""

_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


async def _connect(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises `OSError`. By hand, as uvloop takes no abstract names; such a connect never waits."""
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.setblocking(False)
        peer.connect(name)
        return await asyncio.open_unix_connection(sock=peer)
    except BaseException:
        peer.close()
        raise


async def _read(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """One frame. Raises `EOFError` if there is none."""
    frames = FrameReader(decoder)
    while data := await reader.read(_READ_BYTES):
        for value in frames.feed(data):
            return value
    raise EOFError("the connection was closed")


def _is_own_user(writer: asyncio.StreamWriter) -> bool:
    peer = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size
    )
    _, user, _ = _PEER.unpack(peer)
    return bool(user == os.getuid())
