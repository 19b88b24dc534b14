"""What the proxy asks the routing brain, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """One prompt that needs a replica.

    `block_hashes` are those of its full KV blocks, first to last, as the replicas' engines hash
    them (`protocol.block_hash`), or of chunks of its text (`text_hash.hash_text`). `head` is what
    the hash ring sees: equal for prompts that begin alike (`ring.prompt_head`).
    """

    request_id: str
    block_hashes: Sequence[bytes]
    num_prompt_tokens: int
    max_tokens: int | None
    head: bytes
    session: str | None = None
    tenant: str = ""
    streams: bool = True
    """Whether the answer comes as it is generated, and so tells when its prefill was done."""
    adapter: str | None = None
    """The name that only replicas with this adapter answer to."""


@dataclass(slots=True)
class Candidate:
    """One replica as it looked when a request was routed, for `pagelet explain`."""

    replica_id: str
    hit_tokens: int
    """Tokens of the prompt that its prefix cache is thought to hold."""
    wait_seconds: float
    """Estimated time until it would be begun: prompts sent before it, and the step under way."""
    prefill_seconds: float
    """Estimated time that what is not cached of it takes."""
    ttft_seconds: float
    """Estimated time to first token: wait, prefill, and what any first token takes."""
    load: float
    """What policies of load balance: requests in flight."""
    score: float
    """What the policy compares; the least wins."""
    note: str = ""
    holds_head: bool = False
    """Whether it is thought to hold the part of the prompt that the hash ring sees."""
    holds_unknown: float = 0.0
    """Share of the prompts not known to be there that it turned out to hold, lately."""


@dataclass(slots=True)
class Decision:
    """Where a request goes, and why."""

    replica_id: str
    reason: str
    predicted_hit_tokens: int
    predicted_ttft_seconds: float
    candidates: list[Candidate] = field(default_factory=list)
