"""A server that answers as a test tells it to: with errors, cuts and silences that a real one shows
only when something goes wrong. It speaks HTTP and a replica's protocol over a real socket."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any


@dataclasses.dataclass
class Asked:
    """One request for a model."""

    path: str
    headers: dict[str, str]
    data: bytes
    writer: asyncio.StreamWriter
    closed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """The other side went away."""

    @property
    def body(self) -> Any:
        return json.loads(self.data)


Answer = Callable[[Asked], Awaitable[None]]


class ScriptedReplica:
    """`answer` handles the next requests for a model; `asked` lists those that came."""

    def __init__(self, *, pagelet: bool = True, draining: bool = False) -> None:
        self.asked: list[Asked] = []
        self.answer: Answer = whole({"choices": []})
        self.draining = draining
        self.mute = False
        """Whether probes get no answer."""
        self.claims: dict[str, Any] = {}
        """What it says of itself in place of the truth."""
        self.models: list[dict[str, Any]] = [{"id": "m"}]
        """What a server of another kind lists."""
        self.probes = 0
        self._pagelet = pagelet
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while not writer.is_closing():
                    await self._answer_one(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        data = await reader.readexactly(int(headers.get("Content-Length", 0)))
        if method == "GET":
            self.probes += 1
            if self.mute:
                await asyncio.Event().wait()
            await self._describe(path, writer)
            return
        asked = Asked(path, headers, data, writer)
        self.asked.append(asked)
        answering = asyncio.create_task(self.answer(asked))
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            asked.closed.set()
            answering.cancel()
        gone.cancel()
        await asyncio.gather(answering, gone, return_exceptions=True)
        if answering.done() and not answering.cancelled():
            answering.result()

    async def _describe(self, path: str, writer: asyncio.StreamWriter) -> None:
        description = {
            "incarnation": "1",
            "version": "1",
            "served_model_names": ["m"],
            "max_model_len": 1000,
            "block_size": 16,
            "num_kv_blocks": 100,
            "max_num_seqs": 8,
            "enable_prefix_caching": True,
            "data_parallel_size": 1,
            "draining": self.draining,
        } | self.claims
        if path == "/v1/replica" and self._pagelet:
            await send(writer, 200, description)
        elif path == "/v1/models" and not self._pagelet:
            await send(writer, 200, {"object": "list", "data": self.models})
        elif path == "/health" and not self._pagelet:
            await send(writer, 200, {})
        else:
            await send(writer, 404, {"detail": "Not Found"})


async def send(
    writer: asyncio.StreamWriter, status: int, body: Any, headers: Sequence[str] = ()
) -> None:
    data = json.dumps(body).encode()
    lines = (f"HTTP/1.1 {status} x", *headers, f"Content-Length: {len(data)}", "", "")
    writer.write("\r\n".join(lines).encode() + data)
    await writer.drain()


def whole(body: Any, status: int = 200, headers: Sequence[str] = ()) -> Answer:
    """A whole JSON answer."""

    async def answer(asked: Asked) -> None:
        await send(asked.writer, status, body, ["Content-Type: application/json", *headers])

    return answer


def error(
    status: int, code: str, headers: Sequence[str] = (), kind: str = "server_error"
) -> Answer:
    """An error in OpenAI's shape."""
    detail = {"message": f"it is {code}", "type": kind, "param": None, "code": code}
    return whole({"error": detail}, status, headers)


async def cut(asked: Asked) -> None:
    """No answer: the connection breaks."""
    asked.writer.transport.abort()


async def switch(asked: Asked) -> None:
    """Another protocol, which nobody asked for."""
    asked.writer.write(b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx")
    await asked.writer.drain()


async def silent(asked: Asked) -> None:
    """No answer, ever."""
    await asyncio.Event().wait()


def stream(*parts: bytes, end: str = "whole", pause: float = 0.0) -> Answer:
    """A stream of server-sent events, each part in a segment of its own. `end` is "whole", "cut"
    or "silent"."""

    async def answer(asked: Asked) -> None:
        writer = asked.writer
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for part in parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(pause)
        if end == "silent":
            await asyncio.Event().wait()
        elif end == "cut":
            writer.transport.abort()
        else:
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    return answer


def event(index: int, text: str, *comments: str, finish: str | None = None) -> bytes:
    """A chunk of completions, with the journal's lines."""
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
    chunk = {"id": "x", "object": "text_completion", "created": 7, "model": "m"}
    lines = [f"data: {json.dumps(chunk | {'choices': [choice]}, separators=(',', ':'))}"]
    return "\n".join((*lines, *(f": {comment}" for comment in comments), "", "")).encode()


DONE = b"data: [DONE]\n\n"


@contextlib.asynccontextmanager
async def scripted(replicas: Iterable[ScriptedReplica]) -> AsyncIterator[None]:
    """Runs them."""
    replicas = list(replicas)
    for replica in replicas:
        await replica.start()
    try:
        yield
    finally:
        for replica in replicas:
            await replica.stop()
