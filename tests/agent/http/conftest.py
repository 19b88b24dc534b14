"""A server on a free port of the loopback interface, in a thread with an event loop of its own."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from types import SimpleNamespace

import httpx
import openai
import pytest
import uvicorn

from pagelet.agent.http.app import create_app
from pagelet.agent.metrics import Metrics
from pagelet.agent.settings import ServeSettings
from pagelet.process.half_closed import HalfClosedProtocol
from support.router_thread import router_thread

from .fake_llm import FakeLLM
from .thinking_llm import make_thinking_llm


class RunningServer:
    def __init__(self, llm, app, port, loop):
        self.llm = llm
        self.app = app
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._loop = loop

    @property
    def state(self):
        return self.app.state.server

    def openai(self, **options):
        return openai.OpenAI(base_url=f"{self.url}/v1", **({"api_key": "-"} | options))

    def async_openai(self):
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="-", max_retries=0)

    def post(self, path, **options):
        return httpx.post(self.url + path, **({"timeout": 60} | options))

    def get(self, path, **options):
        return httpx.get(self.url + path, **({"timeout": 60} | options))

    def run(self, function):
        """Calls `function` on the server's loop."""

        async def call():
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)

    def finish(self, function):
        """Awaits `function()` on the server's loop."""
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(60)

    def wait_until(self, condition):
        """Until `condition()` holds on the server's loop. Its truth is taken there too: a list of
        the loop's that it returns may fill before this thread looks at it."""

        deadline = time.monotonic() + 60
        while not self.run(lambda: bool(condition())):
            assert time.monotonic() < deadline, "it did not come to that within 60 s"
            time.sleep(0.005)


@contextlib.contextmanager
def serving(make_llm, num_engines=1, max_loras=0, **settings):
    """`make_llm(metrics)` is awaited on the server's loop."""
    listener = socket.create_server(("127.0.0.1", 0))
    started = threading.Event()
    made = {}

    async def serve():
        metrics = Metrics(
            model_name="tiny",
            max_model_len=1000,
            block_size=16,
            enable_prefix_caching=True,
            num_engines=num_engines,
            max_loras=max_loras,
        )
        llm = await make_llm(metrics)
        app = create_app(llm, ServeSettings(**settings), metrics)
        config = uvicorn.Config(
            app, http=HalfClosedProtocol, log_config=None, access_log=False, lifespan="off"
        )
        server = uvicorn.Server(config)
        port = listener.getsockname()[1]
        made["server"] = RunningServer(llm, app, port, asyncio.get_running_loop())
        made["uvicorn"] = server
        started.set()
        await server.serve(sockets=[listener])

    def run():
        with asyncio.Runner(loop_factory=uvicorn_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(60)
        yield made["server"]
    finally:
        made["uvicorn"].should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()


def uvicorn_loop():
    import uvloop

    return uvloop.new_event_loop()


@pytest.fixture
def serve():
    """Starts servers with settings of their own, on a fake engine."""
    with contextlib.ExitStack() as stack:

        def start(**settings):
            async def make_llm(metrics):
                return FakeLLM(metrics)

            return stack.enter_context(serving(make_llm, **settings))

        yield start


def answer_routers(llm):
    """Lets the fake engine describe itself; no router can have its tokenizer."""

    async def bundle():
        return SimpleNamespace(data=b"{}", digest="none")

    llm.tokenizer_bundle = bundle
    core = SimpleNamespace(incarnation="1", block_size=16, num_kv_blocks=100, kv_events=None)
    llm.ready_engines = [core]


DIRECT_AND_ROUTED = pytest.mark.parametrize("server", ["server", "router"], indirect=True)
"""Clients talk to the server, and again to a router in front of it."""
DIRECT_AND_IMPATIENTLY_ROUTED = pytest.mark.parametrize(
    "server", ["server", pytest.param("impatient router", id="router")], indirect=True
)
"""As before, with a router that soon says so when the server is not ready."""


@pytest.fixture
def server(request, serve):
    server = serve()
    kind = getattr(request, "param", "server")
    if kind == "server":
        yield server
        return
    answer_routers(server.llm)
    with router_thread(server.url, queue_timeout=3 if kind == "impatient router" else 60) as port:
        yield RunningServer(server.llm, server.app, port, server._loop)


@pytest.fixture
def keeper(serve):
    """A server that keeps responses."""
    return serve(response_store=1 << 20)


@pytest.fixture
def thinking_keeper():
    """The same, of a model that thinks and calls."""
    with serving(make_thinking_llm, response_store=1 << 20) as server:
        yield server


def open_request(server, body, path="/v1/chat/completions"):
    """A connection on which a whole request was sent, and nothing read."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection
