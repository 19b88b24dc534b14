"""How commands talk to the supervisor: a unix socket, one JSON object a line each way."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec

_SECONDS = 30.0
T = TypeVar("T")


class ControlError(Exception):
    """The supervisor did not do it; the message says why."""


class NotUnderstood(ControlError):
    """Its answer is none that this version knows."""


class Call(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a command wants."""

    command: Literal["status", "apply", "scale", "stop"]
    pool: str = ""
    replicas: int = 0
    """Of `scale`."""
    at_once: bool = False
    """Of `stop`: without waiting for what runs."""


class Answer(msgspec.Struct, kw_only=True):
    """What came of it."""

    error: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")


Handle = Callable[[Call], Awaitable[Any]]


async def listen(path: str, handle: Handle) -> asyncio.Server:
    """Answers calls with what `handle` returns; a `ControlError` of it is passed on."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await _answer(line, handle)) + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # the caller is gone, or wrote a line without end
        finally:
            writer.close()

    return await asyncio.start_unix_server(serve, path)


async def _answer(line: bytes, handle: Handle) -> Answer:
    try:
        result = await handle(msgspec.json.decode(line, type=Call))
    except (ControlError, msgspec.MsgspecError) as error:
        return Answer(error=str(error))
    return Answer(result=msgspec.Raw(msgspec.json.encode(result)))


def call(path: str, call: Call, result_type: type[T]) -> T:
    """Asks the supervisor at a socket. Raises `ControlError`, also if nobody answers."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_SECONDS)
            sock.connect(path)
            sock.sendall(msgspec.json.encode(call) + b"\n")
            with sock.makefile("rb") as file:
                line = file.readline()
    except OSError as error:
        raise ControlError(f"the supervisor does not answer: {error}") from None
    if not line:
        raise ControlError("the supervisor ended meanwhile")
    try:
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error is not None:
            raise ControlError(answer.error)
        return msgspec.json.decode(answer.result, type=result_type)
    except msgspec.MsgspecError as error:
        raise NotUnderstood(
            f"the supervisor is of another version of Pagelet, or ended meanwhile ({error})"
        ) from None
