"""The spans of a replica's requests: the request, and of each answer its queue, prefill and decode.

Attributes follow OpenTelemetry's conventions for HTTP and generative AI; those of latency are named
as in vLLM's traces.
"""

import contextvars
import time
from collections.abc import Iterator, Sequence
from typing import Final

from pagelet.engine.beam_stream import AnswerStream
from pagelet.engine.observer import RequestTimes
from pagelet.process.spans import Attribute, Span
from pagelet.protocol.trace_context import TraceContext

SERVICE_NAME: Final = "pagelet-agent"
_SERVER_ERROR: Final = 500
_LATENCY: Final = "gen_ai.latency.time_"

_streams: contextvars.ContextVar[list[AnswerStream] | None] = contextvars.ContextVar(
    "pagelet_traced_streams", default=None
)


def trace_streams() -> list[AnswerStream]:
    """What the engine does for the request that is handled now is added to this list."""
    streams: list[AnswerStream] = []
    _streams.set(streams)
    return streams


def note_stream(stream: AnswerStream) -> None:
    """The engine began to answer a prompt of the request that is handled now."""
    if (streams := _streams.get()) is not None:
        streams.append(stream)


def spans_of(
    trace: TraceContext,
    streams: Sequence[AnswerStream],
    *,
    method: str,
    path: str,
    model: str,
    status: int,
    started: float,
    request_id: str,
) -> Iterator[Span]:
    """Of a request that is over, which began at `started` of the monotonic clock."""
    now, offset = time.monotonic(), time.time() - time.monotonic()
    answers = [times for stream in streams for times in stream.times]
    attributes: dict[str, Attribute] = {
        "http.request.method": method,
        "url.path": path,
        "http.response.status_code": status,
        "gen_ai.request.model": model,
        "pagelet.request_id": request_id,
        "gen_ai.usage.input_tokens": sum(stream.num_prompt_tokens for stream in streams),
        "gen_ai.usage.output_tokens": sum(times.num_generated_tokens for times in answers),
    }
    yield Span(
        name=f"{method} {path}",
        trace=trace,
        start=started + offset,
        end=now + offset,
        attributes=attributes,
        failed=status >= _SERVER_ERROR or any(times.finish_reason == "error" for times in answers),
    )
    for index, times in enumerate(answers):
        yield from _parts(trace, index, times, offset)


def _parts(trace: TraceContext, index: int, times: RequestTimes, offset: float) -> Iterator[Span]:
    """As far as the answer came."""
    stages = (
        ("queue", "in_queue", times.arrival, times.scheduled),
        ("prefill", "in_model_prefill", times.scheduled, times.first_token),
        ("decode", "in_model_decode", times.first_token, times.last_token),
    )
    for name, latency, start, end in stages:
        if not (start and end):
            continue
        attributes: dict[str, Attribute] = {
            "pagelet.answer": index,
            f"{_LATENCY}{latency}": end - start,
        }
        if name == "prefill":
            attributes["gen_ai.usage.input_tokens"] = times.num_prompt_tokens
            attributes["pagelet.cached_tokens"] = times.num_cached_tokens
            attributes[f"{_LATENCY}to_first_token"] = end - times.arrival
        elif name == "decode":
            attributes["gen_ai.usage.output_tokens"] = times.num_generated_tokens
            attributes["gen_ai.response.finish_reason"] = times.finish_reason
        yield Span(
            name=name,
            trace=trace.child(),
            start=start + offset,
            end=end + offset,
            attributes=attributes,
            failed=times.finish_reason == "error" and name == "decode",
            is_part=True,
        )
