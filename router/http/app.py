"""The router's HTTP server as an ASGI application.

Plain ASGI: what a framework does for each request costs more than all that is done here.
"""

import asyncio
import importlib.metadata
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from pagelet.process.disconnect import ClientGone, Receive, run_until_disconnect
from pagelet.protocol.exposition import CONTENT_TYPE
from pagelet.protocol.openai.errors import ApiError, retry_after
from pagelet.protocol.request_id import clean_request_id
from pagelet.protocol.trace_context import TraceContext
from pagelet.router import access_log, gauges, kept_responses
from pagelet.router.http.exchange import Exchange
from pagelet.router.http.inference import PATHS, Inference
from pagelet.router.merged_metrics import merge
from pagelet.router.proxy.body import RequestBody
from pagelet.router.record import RequestRecord
from pagelet.router.siblings import ALONE, ExplainQuestion, MetricsQuestion, Question, Siblings
from pagelet.router.spans import span_of
from pagelet.router.state import RouterState
from pagelet.router.states import States
from pagelet.router.tenants.tenant import Tenant
from pagelet.router.tenants.usage import usage_of

_log = logging.getLogger(__name__)

_CLIENT_CLOSED_REQUEST: Final = 499
"""Not an HTTP status: what nginx logs for a client that went away."""
_MODEL: Final = "/v1/models/"
_EXPLAIN: Final = "/v1/explain/"

Handler = Callable[[Exchange], Awaitable[None]]


class RouterApp:
    """See the module."""

    def __init__(self, state: RouterState, siblings: Siblings = ALONE) -> None:
        self.states = States(state)
        self.leaving = False
        """Whether each connection is closed after its next answer: others take the new ones."""
        self._siblings = siblings
        self._open: dict[str, tuple[Handler, tuple[str, ...]]] = {
            "/health": (self._health, ("GET",)),
            "/ping": (self._health, ("GET", "POST")),  # as SageMaker and vLLM have it
            "/ready": (self._ready, ("GET",)),
            "/metrics": (self._metrics, ("GET",)),
            "/version": (self._version, ("GET",)),
        }
        """For probes and scrapers, by path: what answers them, and the methods that it takes. They
        need no key, and work in a drain."""

    @property
    def state(self) -> RouterState:
        """The one in force."""
        return self.states.current

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Any) -> None:
        """ASGI's entry point."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        exchange = Exchange(scope, receive, send)
        if self.leaving:
            exchange.extra_headers.append(("Connection", "close"))
        if (found := self._open.get(exchange.path)) is not None:
            handler, methods = found
            try:
                _check_method(exchange, *methods)
                await handler(exchange)
            except ApiError as error:
                await exchange.answer_error(error)
            return
        await self._answer(exchange)

    async def _live(self, receive: Receive, send: Any) -> None:
        """The state in force runs as long as the server does."""
        await receive()
        async with self.states.running(), self._siblings.answering(self._answer_sibling):
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, exchange: Exchange) -> None:
        trace = TraceContext.receive(
            exchange.header(b"traceparent"), exchange.header(b"tracestate")
        )
        record = RequestRecord(
            request_id=clean_request_id(exchange.header(b"x-request-id")),
            trace_id=trace.trace_id,
            method=exchange.method,
            path=exchange.path,
        )
        exchange.extra_headers.insert(0, ("X-Request-Id", record.request_id))
        state = self.state
        state.open_request()
        try:
            await self._serve(state, exchange, record, trace)
        except ClientGone:
            exchange.status = _CLIENT_CLOSED_REQUEST
        except ApiError as error:
            await self._fail(exchange, record, error)
        except asyncio.CancelledError:
            # The server ends, and this request took longer than a drain may.
            message = "The router shut down before the answer was finished."
            await self._fail(exchange, record, ApiError(503, message))
        except Exception:
            _log.exception("a request failed", extra={"request_id": record.request_id})
            message = "The router had an error while processing your request."
            await self._fail(exchange, record, ApiError(500, message))
        finally:
            state.close_request()
            self._conclude(exchange, record, trace)

    async def _serve(
        self, state: RouterState, exchange: Exchange, record: RequestRecord, trace: TraceContext
    ) -> None:
        path = exchange.path
        tenant = state.tenants.identify(
            exchange.header(b"authorization"), exchange.header(b"x-api-key")
        )
        record.tenant = tenant.name
        if state.draining:
            raise _draining()
        if path in PATHS:
            _check_method(exchange, "POST")
            await self._infer(state, exchange, record, trace, tenant)
        elif path.startswith(kept_responses.PREFIX) and _stays_below(path):
            await self._ask_keeper(state, exchange, record, tenant)
        elif path == "/v1/models":
            _check_method(exchange, "GET")
            models = state.models.list_models(tenant)
            await exchange.answer_json(models.model_dump_json().encode())
        elif path.startswith(_MODEL):
            _check_method(exchange, "GET")
            model = state.models.get_model(path.removeprefix(_MODEL), tenant)
            await exchange.answer_json(model.model_dump_json().encode())
        elif path == "/v1/usage":
            _check_method(exchange, "GET")
            used = usage_of(await self._all_metrics(), tenant)
            await exchange.answer_json(msgspec.json.encode(used))
        elif path.startswith(_EXPLAIN):
            _check_method(exchange, "GET")
            await self._explain(exchange, path.removeprefix(_EXPLAIN), tenant)
        else:
            message = f"Not Found: {exchange.method} {path[:200]}"
            raise ApiError(404, message, code="unknown_url")

    async def _infer(
        self,
        state: RouterState,
        exchange: Exchange,
        record: RequestRecord,
        trace: TraceContext,
        tenant: Tenant,
    ) -> None:
        state.budget.on_request(time.monotonic())
        grant = state.limiter.open(tenant)
        try:
            exchange.grant = grant
            try:
                data = await state.whole_body(exchange.read_json(state.options.max_body_bytes))
            except TimeoutError as error:
                raise _draining() from error
            record.body_seconds = record.elapsed()
            body = RequestBody(data)
            if body.request_id is not None:
                record.request_id = clean_request_id(body.request_id)
                exchange.extra_headers[0] = ("X-Request-Id", record.request_id)
            state.explanations.add(record)
            inference = Inference(state, exchange, record, trace, tenant, grant, body)
            await run_until_disconnect(exchange.receive, inference.run())
        finally:
            grant.close()

    async def _ask_keeper(
        self, state: RouterState, exchange: Exchange, record: RequestRecord, tenant: Tenant
    ) -> None:
        _check_method(exchange, "DELETE", "GET", "POST")
        grant = state.limiter.open(tenant)
        try:
            exchange.grant = grant
            # What HEAD asks for is what GET brings; the server leaves its body out.
            method = "GET" if exchange.method == "HEAD" else exchange.method
            answer = await kept_responses.ask(state, tenant, record, method, exchange.target)
            await exchange.answer(answer.status, answer.body, answer.headers)
        finally:
            grant.close()

    async def _fail(self, exchange: Exchange, record: RequestRecord, error: ApiError) -> None:
        record.error = error.detail.code or error.detail.type
        if error.reason is not None:
            self.state.metrics.on_rejected(error.reason)
        await exchange.answer_error(error)

    def _conclude(self, exchange: Exchange, record: RequestRecord, trace: TraceContext) -> None:
        record.status = exchange.status
        record.seconds = record.elapsed()
        if exchange.path in PATHS:
            self.state.metrics.on_finished(record)
            if self.state.spans is not None:
                self.state.spans.add(span_of(record, trace))
        access_log.write(record)

    # What probes and scrapers ask.

    async def _health(self, exchange: Exchange) -> None:
        """200 while the event loop turns."""
        await exchange.answer_json(b'{"status":"ok"}')

    async def _ready(self, exchange: Exchange) -> None:
        """200 if requests are welcome and a replica takes them, or will start for them."""
        if self.state.draining:
            raise _unavailable("the router is draining")
        wakes = any(route.starts_from_zero for route in self.state.config.models)
        if not self.state.available and not wakes:
            raise _unavailable("no replica is ready")
        await exchange.answer_json(b'{"status":"ready"}')

    async def _metrics(self, exchange: Exchange) -> None:
        text = await self._all_metrics()
        await exchange.answer(200, text, [(b"content-type", CONTENT_TYPE.encode())])

    async def _all_metrics(self) -> bytes:
        """Of all workers together."""
        text = self._render_metrics()
        others = await self._siblings.ask(MetricsQuestion())
        return merge([text, *others]) if others else text

    def _render_metrics(self) -> bytes:
        gauges.refresh(self.state)
        return self.state.metrics.render()

    async def _explain(self, exchange: Exchange, request_id: str, tenant: Tenant) -> None:
        explanations = self.state.explanations
        found = explanations.find(request_id, tenant.name, admin=tenant.admin)
        if found is None:
            question = ExplainQuestion(request_id, tenant.name, tenant.admin)
            found = next(iter(await self._siblings.ask(question)), None)
        if found is None:
            raise explanations.not_found(request_id)
        await exchange.answer_json(found)

    def _answer_sibling(self, question: Question) -> bytes | None:
        match question:
            case MetricsQuestion():
                return self._render_metrics()
            case ExplainQuestion(request_id, tenant, admin):
                return self.state.explanations.find(request_id, tenant, admin=admin)

    async def _version(self, exchange: Exchange) -> None:
        version = {"version": importlib.metadata.version("pagelet")}
        await exchange.answer_json(msgspec.json.encode(version))


def _check_method(exchange: Exchange, *methods: str) -> None:
    """Raises `ApiError` for any other; whoever may GET may ask for the head alone."""
    allowed = {*methods, "HEAD"} if "GET" in methods else {*methods}
    if exchange.method not in allowed:
        raise ApiError(
            405,
            f"Method Not Allowed: {exchange.method} {exchange.path[:200]}",
            code="method_not_allowed",
            headers={"Allow": ", ".join(sorted(allowed))},
        )


def _stays_below(path: str) -> bool:
    """Whether no proxy before a replica could take the path for one that is not for clients."""
    return not {".", ".."} & set(path.split("/"))


def _draining() -> ApiError:
    return ApiError(
        503,
        "The router is shutting down; send the request again.",
        code="draining",
        headers={"Retry-After": retry_after(1.0), "Connection": "close"},
        reason="draining",
    )


def _unavailable(why: str) -> ApiError:
    return ApiError(503, why, code="unavailable", headers={"Retry-After": retry_after(1.0)})
