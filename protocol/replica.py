"""What a replica says of itself to a router: `GET /v1/replica`.

A router believes no numbers that cannot be, such as a block of no tokens: whoever tells them is not
a replica.
"""

from typing import Annotated

import msgspec

_MOST_RANKS = 1024
_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Measured = Annotated[float, msgspec.Meta(ge=0)]


class KVEventsSource(msgspec.Struct, kw_only=True):
    """Where the KV events of a replica's data-parallel ranks are published, in vLLM's format.

    A host `*` or `0.0.0.0` or `[::]` stands for the host that the replica is reached by; a path
    (`ipc://...`) is one on the replica's machine."""

    endpoints: Annotated[list[str], msgspec.Meta(max_length=_MOST_RANKS)]
    """PUB sockets, one a rank, as they are really bound."""
    replay_endpoints: list[str] = []
    """ROUTER sockets that replay missed batches, one a rank; empty if there are none."""
    topic: str = ""
    """Of the messages; a prefix to subscribe to."""

    def __post_init__(self) -> None:
        if self.replay_endpoints and len(self.replay_endpoints) != len(self.endpoints):
            raise ValueError(
                "a publisher of KV events has no replay endpoint, or there are too many"
            )


class ReplicaDescription(msgspec.Struct, kw_only=True):
    """One replica: an HTTP server in front of one or several data-parallel engine cores."""

    incarnation: str
    """Another one whenever an engine core has started anew, and so with an empty KV cache."""
    version: str
    served_model_names: list[str]
    """Those of its adapters among them."""
    adapters: dict[str, str] = {}
    """Digests of its LoRA adapters by name: an adapter's blocks are hashed with it."""
    max_model_len: _Positive
    block_size: _Positive
    """Tokens a KV block, and so a block hash."""
    num_kv_blocks: _Count
    """Of all ranks together."""
    max_num_seqs: _Positive
    """Most requests in one step, of all ranks together."""
    enable_prefix_caching: bool
    takes_priority: bool = False
    """Whether its scheduler goes by the `priority` of requests; if not, it refuses them."""
    data_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=_MOST_RANKS)]
    kv_events: KVEventsSource | None = None
    """None if they are not published."""
    tokenizer: str | None = None
    """SHA-256 of the `TokenizerBundle` at `GET /v1/tokenizer`, in hexadecimal digits."""
    prefill_tokens_per_second: _Measured | None = None
    """Of full steps of one rank, by what was measured; None until enough prompts were computed."""
    decode_step_seconds: _Measured | None = None
    """What a step of decodes alone takes, as measured; None until there were some."""
    response_store: str | None = None
    """What the ids of the responses that it keeps begin with, after `resp_`; None if it keeps none.
    Another one after each start of its server."""
    draining: bool = False
    """Whether it takes no new requests and is about to end."""
