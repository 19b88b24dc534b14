"""One replica as a router sees it."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from pagelet.protocol.replica import ReplicaDescription
from pagelet.protocol.router import ProxyOptions
from pagelet.router.replicas.breaker import Breaker
from pagelet.router.replicas.discovery import Endpoint
from pagelet.router.replicas.shared_time import SharedTime
from pagelet.router.upstream.client import Upstream
from pagelet.router.upstream.connection import Headers, UpstreamError

Health = Literal["unknown", "ready", "not ready", "unreachable", "hung", "draining", "gone"]

_ASSUMED_SEQS = 256
"""Requests that a server of another kind is thought to take in one step; it does not say."""
_FETCH_SECONDS = 30.0


@dataclasses.dataclass(eq=False, slots=True)
class Replica:
    """`description` is None for a server that is not Pagelet's, and until it was first reached."""

    endpoint: Endpoint
    upstream: Upstream
    breaker: Breaker
    options: ProxyOptions
    health: Health = "unknown"
    description: ReplicaDescription | None = None
    model_names: list[str] = dataclasses.field(default_factory=list)
    adapters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Digests of those of its models that are adapters, by name; a server of another kind tells no
    digest, and the name stands for it."""
    held_until: float = float("-inf")
    """When it takes requests again, by its own Retry-After."""
    time: SharedTime = dataclasses.field(default_factory=SharedTime)
    """Of the answers that this process sent it."""

    @classmethod
    def at(cls, endpoint: Endpoint, options: ProxyOptions) -> "Replica":
        """Raises `ValueError` if its URL is none."""
        upstream = Upstream(endpoint.url, options.connect_timeout)
        return cls(endpoint, upstream, Breaker(options.breaker_failures), options)

    @property
    def id(self) -> str:
        """Who it is."""
        return self.endpoint.id

    @property
    def is_pagelet(self) -> bool:
        """Whether it understands what routers say to replicas."""
        return self.description is not None

    @property
    def keeps_responses(self) -> bool:
        """Whether it can be asked for some."""
        return self.description is not None and self.description.response_store is not None

    def takes_requests(self, now: float) -> bool:
        """Whether new requests may go to it."""
        return self.health == "ready" and now >= self.breaker.open_until and now >= self.held_until

    @property
    def capacity(self) -> int:
        """Answers in flight that it is given at most."""
        if self.options.max_in_flight is not None:
            return self.options.max_in_flight
        seqs = _ASSUMED_SEQS if self.description is None else self.description.max_num_seqs
        return 2 * seqs

    async def fetch_tokenizer(self, headers: Headers) -> bytes:
        """Its `TokenizerBundle`. Raises `UpstreamError`."""
        response = await self.upstream.send("GET", "/v1/tokenizer", headers, seconds=_FETCH_SECONDS)
        try:
            bundle = await response.read_all(_FETCH_SECONDS)
        finally:
            response.close()
        if response.status != 200:
            raise UpstreamError(f"HTTP {response.status} for /v1/tokenizer")
        return bundle
