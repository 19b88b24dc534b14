"""What all handlers share: the engine, the limits, and whether the server drains."""

import asyncio
import logging
import time
from pathlib import Path

from starlette.requests import Request

from pagelet.agent.auth import ApiKeys
from pagelet.agent.http.message_plan import MessageForms
from pagelet.agent.http.responses.store import ResponseStore
from pagelet.agent.limits import Admission, RateLimiter
from pagelet.agent.metrics import Metrics
from pagelet.agent.settings import ServeSettings
from pagelet.agent.spans import SERVICE_NAME
from pagelet.engine.async_llm import AsyncLLM
from pagelet.process.open_requests import OpenRequests
from pagelet.process.spans import open_sink
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.openai.errors import ApiError

log = logging.getLogger(__name__)


class Server(OpenRequests):
    """The state of one HTTP server. `begin_drain` and `wait_idle` are for its owner."""

    def __init__(self, llm: AsyncLLM, settings: ServeSettings, metrics: Metrics) -> None:
        super().__init__()
        self.llm = llm
        self.settings = settings
        self.metrics = metrics
        self.message_forms = MessageForms(llm.prompts, settings.tool_call_parser)
        self.started = int(time.time())
        file = settings.api_key_file
        self.keys = ApiKeys(settings.api_keys, None if file is None else Path(file))
        self.rates = None if settings.rate_limit is None else RateLimiter(settings.rate_limit)
        self.admission = Admission(settings.max_queue)
        self.long_bodies = asyncio.Lock()
        """Held by the one that is validated."""
        store = settings.response_store
        self.responses = None if store is None else ResponseStore(store)
        self.spans = open_sink(SERVICE_NAME, settings.otlp_traces_endpoint)
        self.draining = False

    def begin_drain(self) -> None:
        """From now on new requests are refused; those that are open finish, if their bodies
        come."""
        self.draining = True
        self.hurry_bodies()

    async def wait_fetched(self) -> None:
        """Until clients have had time to ask for what was answered in the background, and no
        request is open."""
        responses = self.responses
        if responses is not None and (seconds := responses.wanted_seconds) > 0:
            log.info("waiting %.0f s at most for responses to be asked for", seconds)
            await responses.fetched()
        await self.wait_idle()

    def check_model(self, name: str) -> str:
        """The name that answers carry, as in vLLM: the first of the model's, or the adapter's.
        Raises the error for a model that is not served here; it lists those that are."""
        return self.llm.served_model_names[0] if self.adapter_of(name) is None else name

    def adapter_of(self, name: str) -> LoraAdapter | None:
        """What a name means: an adapter, or None for the model itself. Raises as `check_model`."""
        served = self.llm.served_model_names
        adapter = self.llm.adapters.get(name)
        if name not in served and adapter is None:
            listed = ", ".join(repr(known) for known in (*served, *self.llm.adapters))
            raise ApiError(
                404,
                f"The model {name[:200]!r} does not exist; this server has {listed}.",
                param="model",
                code="model_not_found",
                reason="invalid",
            )
        return adapter


def server_of(request: Request) -> Server:
    """The server that a request came to."""
    server = request.app.state.server
    assert isinstance(server, Server)
    return server
