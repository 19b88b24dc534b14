"""The story of one request: what metrics, access log, spans and explanations are made from.

Thousands are remembered, each with every candidate of every choice. None can be part of a cycle, so
they are kept out of the garbage collector's sight (`gc=False`), whose pauses would grow with them.
"""

import time

import msgspec

from pagelet.router.routing.types import Decision


class CandidateRecord(msgspec.Struct, kw_only=True, gc=False):
    """`routing.types.Candidate` as it was."""

    replica_id: str
    hit_tokens: int
    wait_seconds: float
    ttft_seconds: float
    load: float
    score: float
    note: str = ""


class Attempt(msgspec.Struct, kw_only=True, gc=False):
    """One choice of a replica: the first, a retry, or the one that a stream goes on with."""

    at: float
    """Seconds after the request came."""
    replica_id: str
    reason: str
    predicted_hit_tokens: int
    predicted_ttft_seconds: float
    candidates: list[CandidateRecord]
    outcome: str | None = None
    """`completed`, or what went wrong; None while it runs."""


class Event(msgspec.Struct, kw_only=True, gc=False):
    """Something that happened, `at` seconds after the request came."""

    at: float
    what: str
    """Such as `queued`, `first_byte`, `retry`, `resume`."""
    detail: str = ""
    """Names and numbers, never text of prompts, answers or keys."""


class RequestRecord(msgspec.Struct, kw_only=True, gc=False):
    """One request. Whoever handles it fills in what they learn; times are in seconds."""

    request_id: str
    trace_id: str
    method: str
    path: str
    arrived: float = msgspec.field(default_factory=time.time)
    """Unix time."""
    began: float = msgspec.field(default_factory=time.monotonic)
    """Of the monotonic clock."""
    tenant: str = ""
    model: str = ""
    """As `ServedModel.name`; empty until it was found."""
    adapter_of: str = ""
    """The model that `model` is an adapter of, if it is one."""
    pool: str = ""
    stream: bool = False
    answers: int = 1
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens that the replica found in its cache; None if it did not say."""
    completion_tokens: int = 0
    status: int = 0
    """HTTP status of the answer; 0 until it has begun."""
    error: str = ""
    """The code of the error that the client got."""
    body_seconds: float = 0.0
    """Until the last byte of the request came."""
    waited_seconds: float = 0.0
    """In the queue."""
    overhead_seconds: float | None = None
    """From the request's last byte until it went to a replica, without the wait: what the router
    adds."""
    ttft_seconds: float | None = None
    """Until the first byte of the answer came from a replica."""
    seconds: float | None = None
    """Until the end; None while it runs."""
    retries: int = 0
    """Attempts before the first byte beyond the first attempt."""
    resumes: int = 0
    """Times that the stream went on with another replica."""
    replica_seconds: float = 0.0
    """Its share of the time of replicas, of all attempts."""
    attempts: list[Attempt] = []
    timeline: list[Event] = []

    def elapsed(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self.began

    def note(self, what: str, detail: str = "") -> None:
        """Adds to the timeline."""
        self.timeline.append(Event(at=self.elapsed(), what=what, detail=detail))

    def decided(self, decision: Decision) -> Attempt:
        """Adds an attempt."""
        attempt = Attempt(
            at=self.elapsed(),
            replica_id=decision.replica_id,
            reason=decision.reason,
            predicted_hit_tokens=decision.predicted_hit_tokens,
            predicted_ttft_seconds=decision.predicted_ttft_seconds,
            candidates=[
                CandidateRecord(
                    replica_id=candidate.replica_id,
                    hit_tokens=candidate.hit_tokens,
                    wait_seconds=candidate.wait_seconds,
                    ttft_seconds=candidate.ttft_seconds,
                    load=candidate.load,
                    score=candidate.score,
                    note=candidate.note,
                )
                for candidate in decision.candidates
            ],
        )
        self.attempts.append(attempt)
        return attempt
