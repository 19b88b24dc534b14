"""What happens to every request before and after its handler: id, key, limits, log.

Plain ASGI, since Starlette's BaseHTTPMiddleware costs a task and two queues a request and hides
disconnects.
"""

import asyncio
import dataclasses
import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagelet.agent.http.errors import as_api_error, draining, error_response
from pagelet.agent.http.server import Server
from pagelet.agent.limits import RateDecision
from pagelet.agent.spans import spans_of, trace_streams
from pagelet.engine.beam_stream import AnswerStream
from pagelet.engine.outputs import EngineDead
from pagelet.process.disconnect import ClientGone
from pagelet.protocol.openai.common import Usage
from pagelet.protocol.openai.errors import RESPONSES, ApiError, retry_after
from pagelet.protocol.request_id import clean_request_id
from pagelet.protocol.trace_context import TraceContext

OPEN_PATHS = frozenset(("/health", "/ping", "/ready", "/load", "/metrics", "/version"))
"""For probes and scrapers: no key, no limits, and they work while the server drains."""

DRAIN_PATHS = frozenset(("/v1/replica", "/v1/tokenizer"))
"""Need a key, but are answered in a drain too: a router reads there that this replica drains."""

_MOST_LOGGED = 64
"""Characters of a field's name, which clients choose, in the log."""
_CLIENT_CLOSED_REQUEST = 499
"""Not an HTTP status: what nginx logs for a client that went away."""

_access_log = logging.getLogger("pagelet.access")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class RequestContext:
    """One request's entry in the log, and its id in the answer."""

    request_id: str
    started: float
    client: str
    """A short digest of the API key if there are keys; never the key."""
    status: int | None = None
    """None until the answer has begun."""
    rate: RateDecision | None = None
    fields: dict[str, object] = dataclasses.field(default_factory=dict)
    """What handlers add to the log line: numbers, never text of prompts or answers."""

    def note_usage(self, usage: Usage) -> None:
        """Adds what was read and written."""
        self.fields["prompt_tokens"] = usage.prompt_tokens
        self.fields["cached_tokens"] = usage.prompt_tokens_details.cached_tokens
        self.fields["completion_tokens"] = usage.completion_tokens

    def note_error(self, error: ApiError) -> None:
        """Adds which error it was, and of what; not its message, which may quote the request."""
        self.fields["error"] = error.detail.code or error.detail.type
        if error.detail.param is not None:
            self.fields["param"] = ascii(error.detail.param[:_MOST_LOGGED])[1:-1]


def context_of(request: Request) -> RequestContext:
    """The context of a request that came through the gate."""
    context = request.scope["pagelet.context"]
    assert isinstance(context, RequestContext)
    return context


def use_request_id(request: Request, given: str | None) -> None:
    """Lets the id in a request's body, if any, take the place of its header's."""
    if given is not None:
        context_of(request).request_id = clean_request_id(given)


class Gate:
    """ASGI middleware in front of all handlers."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = RequestContext(
            request_id=clean_request_id(headers.get("x-request-id")),
            started=time.monotonic(),
            client="",
        )
        scope["pagelet.context"] = context

        async def tagged_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                out = MutableHeaders(raw=message["headers"])
                out["X-Request-Id"] = context.request_id
                if context.rate is not None:
                    for name, value in context.rate.headers():
                        out[name] = value
            await send(message)

        counted = scope["path"] not in OPEN_PATHS
        traced = self._server.spans is not None and counted and scope["method"] == "POST"
        streams = trace_streams() if traced else []
        if counted:
            self._server.open_request()
        try:
            if counted:
                self._admit(context, headers, scope)
            # Probes may ask for the head alone; the HTTP server leaves the body out then.
            asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
            await self._app(asked, receive, tagged_send)
        except (ClientDisconnect, ClientGone):
            context.status = _CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:
            # The server ends, and this request took longer than a drain may: its body did not
            # come, or its client does not read.
            if context.status is None:
                error = EngineDead("the server shut down before the request was answered")
                await self._fail(error, context, scope, receive, tagged_send)
        except Exception as error:
            await self._fail(error, context, scope, receive, tagged_send)
        finally:
            if counted:
                self._server.close_request()
            if traced:
                self._send_spans(context, scope, headers, streams)
            # Routers ask who this is every second, as probes do how it is, also while it starts.
            routine = scope["path"] in DRAIN_PATHS and context.status in (200, 304, 503)
            self._write_log(context, scope, counted and not routine)

    def _admit(self, context: RequestContext, headers: Headers, scope: Scope) -> None:
        """Raises `ApiError` for a request that must not pass."""
        server = self._server
        if server.keys.required:
            client = server.keys.identify(headers.get("authorization"), headers.get("x-api-key"))
            if client is None:
                raise ApiError(
                    401,
                    "Incorrect or missing API key: send 'Authorization: Bearer KEY'.",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                    reason="auth",
                )
            context.client = client
        # What is kept here is nowhere else.
        kept = scope["path"].startswith(f"{RESPONSES}/")
        if server.draining and scope["path"] not in DRAIN_PATHS and not kept:
            raise draining()
        if server.rates is not None and scope["method"] == "POST":
            context.rate = rate = server.rates.take(context.client)
            if not rate.allowed:
                raise ApiError(
                    429,
                    f"Rate limit of {rate.limit} requests a minute reached; "
                    f"try again in {rate.retry_after:.3f} s.",
                    code="rate_limit_exceeded",
                    headers={"Retry-After": retry_after(rate.retry_after)},
                    reason="rate_limit",
                )

    async def _fail(
        self,
        error: Exception,
        context: RequestContext,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        api_error = as_api_error(error)
        context.note_error(api_error)
        if api_error.status == 500:
            _log.error("a request failed", exc_info=error, extra={"request_id": context.request_id})
        if api_error.reason is not None:
            self._server.metrics.on_rejected(api_error.reason)
        if context.status is None:
            await error_response(api_error, scope["path"])(scope, receive, send)
        else:
            # The answer has begun. Raising makes the server close the connection, so that the
            # client cannot take what it has for the whole.
            raise error

    def _send_spans(
        self, context: RequestContext, scope: Scope, headers: Headers, streams: list[AnswerStream]
    ) -> None:
        sink = self._server.spans
        assert sink is not None
        trace = TraceContext.receive(headers.get("traceparent"), headers.get("tracestate"))
        for span in spans_of(
            trace,
            streams,
            method=scope["method"],
            path=scope["path"],
            model=self._server.llm.served_model_names[0],
            status=context.status or 0,
            started=context.started,
            request_id=context.request_id,
        ):
            sink.add(span)

    def _write_log(self, context: RequestContext, scope: Scope, of_note: bool) -> None:
        level = logging.INFO if of_note else logging.DEBUG
        if not _access_log.isEnabledFor(level):
            return
        extra: dict[str, object] = {
            "request_id": context.request_id,
            "method": scope["method"],
            "path": ascii(scope["path"][:200])[1:-1],
            "status": context.status or 0,
            "seconds": round(time.monotonic() - context.started, 6),
        }
        if context.client:
            extra["client"] = context.client
        _access_log.log(level, "request", extra=extra | context.fields)
