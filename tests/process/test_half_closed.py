"""Clients that close their sending side, or all of it, before or while they are answered."""

import asyncio
import contextlib
import socket

import pytest
import uvloop

from pagelet.process.bounded_head import BoundedHeadProtocol
from pagelet.process.half_closed import HalfClosedProtocol
from pagelet.process.http_server import HTTPServer

ASK = b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n"


class App:
    """Answers when told to; knows of each request whether its client went away."""

    def __init__(self):
        self.asked = asyncio.Semaphore(0)
        self.may_answer = asyncio.Event()
        self.at_once = self.streams = False
        self.gone = set()
        self.changed = asyncio.Condition()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        assert not (await receive())["more_body"]
        if self.at_once:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"all"})
            return
        if self.streams:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        self.asked.release()
        leaves = asyncio.create_task(receive())
        answers = asyncio.create_task(self.may_answer.wait())
        await asyncio.wait((leaves, answers), return_when=asyncio.FIRST_COMPLETED)
        if leaves.done():
            assert leaves.result()["type"] == "http.disconnect"
            async with self.changed:
                self.gone.add(scope["path"])
                self.changed.notify_all()
            answers.cancel()
            return
        leaves.cancel()
        if not self.streams:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"last"})

    async def until_gone(self, *paths):
        async with self.changed, asyncio.timeout(60):
            await self.changed.wait_for(lambda: self.gone == {*paths})


@contextlib.asynccontextmanager
async def serving(protocol=HalfClosedProtocol):
    app = App()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HTTPServer(app, protocol)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.listening.wait()
        try:
            yield app, listener.getsockname()[1]
        finally:
            app.may_answer.set()
            server.should_exit = True
            await task


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def run(request):
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


def test_a_client_that_half_closes_gets_its_whole_answer(run) -> None:
    async def check():
        async with serving() as (app, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASK % 1)
            writer.write_eof()
            await app.asked.acquire()
            await asyncio.sleep(0.1)  # it is looked at a few times meanwhile
            app.may_answer.set()
            data = await reader.read()
            interim, answer = data.split(b"\r\n\r\n", 1)
            assert interim == b"HTTP/1.1 100 Continue"
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close" in answer
            assert b"\r\n4\r\nlast\r\n0\r\n\r\n" in answer
            assert not app.gone
            writer.close()

    run(check())


def test_a_client_that_half_closes_gets_a_head_that_nothing_follows(run) -> None:
    """Which waits for no body: its connection may be closed by then."""

    async def check():
        async with serving() as (app, port):
            app.at_once = True
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
                writer.write_eof()
                assert b"HTTP/1.1 200 OK\r\n" in await reader.read()
                writer.close()

    run(check())


def test_a_client_that_goes_away_is_gone(run) -> None:
    """Before its answer, and while that is under way."""

    async def check():
        for streams in (False, True):
            async with serving() as (app, port):
                app.streams = streams
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(ASK % 1)
                await app.asked.acquire()
                if streams:
                    await reader.readuntil(b"first ")
                writer.close()
                await app.until_gone("/1")

    run(check())


def test_requests_that_were_sent_together_are_all_told_that_their_client_is_gone(run) -> None:
    async def check():
        for protocol in (BoundedHeadProtocol, HalfClosedProtocol):
            async with serving(protocol) as (app, port):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(ASK % 1 + ASK % 2)
                await app.asked.acquire()
                writer.close()
                await app.until_gone("/1")

    run(check())


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param((ASK % 1).replace(b"1.1", b"1.0"), id="HTTP/1.0"),
        pytest.param((ASK % 1) + (ASK % 2), id="pipelined"),
    ],
)
def test_who_cannot_be_asked_counts_as_gone(run, sent) -> None:
    async def check():
        async with serving() as (app, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await app.asked.acquire()
            writer.write_eof()
            await app.until_gone("/1")
            assert await reader.read() == b""
            writer.close()

    run(check())


def test_half_a_request_is_none(run) -> None:
    async def check():
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Le")
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()

    run(check())
