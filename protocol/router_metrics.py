"""Names, types, labels and buckets of the router's metrics, as data.

Those that a scaler watches are there from process start, and with no replica too: a scaler that
cannot find a metric takes it for 0, and would never wake a service that is at zero.
"""

from typing import Final

from pagelet.protocol.autoscaling.demand import TARGETS
from pagelet.protocol.metrics import Metric

_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
_SECONDS_ADDED: Final = (
    *(0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
_TOKENS: Final = (0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)

REPLICA_STATES: Final = (
    *("unknown", "ready", "not ready", "unreachable", "hung", "draining", "ejected"),
)
"""`ejected`: ready, but given no requests by its circuit breaker or its own Retry-After."""

REJECTIONS: Final = (
    *("auth", "forbidden", "requests_limit", "tokens_limit", "queue_full", "overloaded"),
    *("no_replica", "draining", "invalid", "too_large", "upstream"),
)

_MODEL: Final = ("model",)
_POOL: Final = ("model", "pool")
_TENANT: Final = ("model", "tenant")

REQUEST_METRICS: tuple[Metric, ...] = (
    Metric(
        "pagelet_router_requests_total",
        "counter",
        "Requests for a model that are over, by HTTP status; 499 is a client that went away.",
        ("model", "tenant", "code"),
    ),
    Metric(
        "pagelet_router_rejected_requests_total",
        "counter",
        "Requests that got an error in place of an answer, by reason.",
        ("reason",),
        REJECTIONS,
    ),
    Metric("pagelet_router_prompt_tokens_total", "counter", "Tokens of prompts answered.", _TENANT),
    Metric(
        "pagelet_router_cached_tokens_total",
        "counter",
        "Those of them that replicas found in their prefix caches.",
        _TENANT,
    ),
    Metric("pagelet_router_generated_tokens_total", "counter", "Tokens generated.", _TENANT),
    Metric(
        "pagelet_router_replica_seconds_total",
        "counter",
        "Time of replicas that requests took, shared evenly by the answers that a replica was sent "
        "by this process and worked on at once.",
        _TENANT,
    ),
    Metric(
        "pagelet_router_retries_total",
        "counter",
        "Attempts before the first byte beyond a request's first.",
        _MODEL,
    ),
    Metric(
        "pagelet_router_failovers_total",
        "counter",
        "Requests that another replica answered after one had failed.",
        _MODEL,
    ),
    Metric(
        "pagelet_router_resumes_total",
        "counter",
        "Times that a stream went on with another replica.",
        _MODEL,
    ),
    Metric(
        "pagelet_router_predicted_hit_tokens_total",
        "counter",
        "Prompt tokens that were thought to be in the chosen replica's cache, of those requests "
        "whose replica told what it had.",
        _MODEL,
    ),
    Metric(
        "pagelet_router_actual_hit_tokens_total",
        "counter",
        "Prompt tokens of the same requests that really were.",
        _MODEL,
    ),
    Metric(
        "pagelet_router_hit_error_tokens",
        "histogram",
        "By how much a prediction was off, either way.",
        _MODEL,
        buckets=_TOKENS,
    ),
    Metric(
        "pagelet_router_time_to_first_token_seconds",
        "histogram",
        "From a request's arrival until its answer began.",
        _MODEL,
        buckets=_SECONDS,
    ),
    Metric(
        "pagelet_router_request_duration_seconds",
        "histogram",
        "From a request's arrival to its end.",
        _MODEL,
        buckets=_SECONDS,
    ),
    Metric(
        "pagelet_router_queue_wait_seconds",
        "histogram",
        "Time in the router's queue, of requests that left it for a replica.",
        _MODEL,
        buckets=_SECONDS,
    ),
    Metric(
        "pagelet_router_overhead_seconds",
        "histogram",
        "What the router added to a request before a replica had it, its queue aside.",
        _MODEL,
        buckets=_SECONDS_ADDED,
    ),
)

DEMAND: Final = "pagelet_router_demand_replicas"
"""What a service is scaled by."""

POOL_METRICS: tuple[Metric, ...] = (
    Metric(
        "pagelet_router_waiting_requests",
        "gauge",
        "Requests that wait for room in a replica, or for a replica.",
        _POOL,
    ),
    Metric(
        "pagelet_router_held_requests",
        "gauge",
        "Those of them for which there is no replica at all.",
        _POOL,
    ),
    Metric("pagelet_router_inflight_answers", "gauge", "Answers that replicas work on.", _POOL),
    Metric(
        "pagelet_router_capacity_answers",
        "gauge",
        "Answers that replicas are given at once.",
        _POOL,
    ),
    Metric(
        "pagelet_router_inflight_uncached_prefill_tokens",
        "gauge",
        "Prompt tokens that were sent, are in no cache, and whose answers did not begin.",
        _POOL,
    ),
    Metric(
        "pagelet_router_waiting_prompt_tokens",
        "gauge",
        "Prompt tokens of waiting requests.",
        _POOL,
    ),
    Metric(
        "pagelet_router_backlog_seconds",
        "gauge",
        "Prompt tokens in flight without a cache and waiting, over the rate at which all replicas "
        "prefill; of one replica, as fast as the last ones, if there is none.",
        _POOL,
    ),
    Metric(
        "pagelet_router_queued_prefill_seconds",
        "gauge",
        "For which one replica would prefill the prompts that wait, in the router or behind one "
        "that is computed.",
        _POOL,
    ),
    Metric(
        "pagelet_router_prefill_load",
        "gauge",
        "Replicas that prompts keep busy: seconds of prefill that arrived a second, of late.",
        _POOL,
    ),
    Metric(
        "pagelet_router_decode_slots_in_use",
        "gauge",
        "Answers in flight that have begun.",
        _POOL,
    ),
    Metric(
        "pagelet_router_decode_slots",
        "gauge",
        "Answers that all replicas continue in one step.",
        _POOL,
    ),
    Metric(
        "pagelet_router_kv_load",
        "gauge",
        "KV caches of replicas that answers in flight fill.",
        _POOL,
    ),
    Metric(
        DEMAND,
        "gauge",
        "Replicas that the demand asks for, by what is scarce. Add up over routers, then take the "
        "largest, and round up.",
        ("service", "model", "pool", "target"),
        TARGETS,
    ),
    Metric("pagelet_router_replicas", "gauge", "Replicas by state.", ("model", "pool", "state")),
    Metric("pagelet_router_index_blocks", "gauge", "Blocks in the prefix index.", _POOL),
    Metric(
        "pagelet_router_replicas_with_events",
        "gauge",
        "Replicas whose prefix caches are known by their own events.",
        _POOL,
    ),
    Metric(
        "pagelet_router_kv_event_gaps_total",
        "counter",
        "Times that events of a replica were missing.",
        _POOL,
    ),
    Metric(
        "pagelet_router_kv_event_replays_total",
        "counter",
        "Batches of events that were asked for again.",
        _POOL,
    ),
)

SERVER_METRICS: tuple[Metric, ...] = (
    Metric("pagelet_router_draining", "gauge", "1 while the router takes no more requests.", ()),
    Metric("pagelet_router_open_requests", "gauge", "HTTP requests being answered.", ()),
    Metric("pagelet_router_tenants", "gauge", "Tenants in the file of keys.", ()),
    Metric(
        "pagelet_router_keys_file_broken",
        "gauge",
        "1 while the file of keys is not usable and the last one stays in force.",
        (),
    ),
)

SAME_IN_ALL_WORKERS: Final = frozenset(
    (
        "pagelet_router_replicas",
        "pagelet_router_replicas_with_events",
        "pagelet_router_decode_slots",
        "pagelet_router_index_blocks",
        "pagelet_router_kv_event_gaps_total",
        "pagelet_router_kv_event_replays_total",
        "pagelet_router_draining",
        "pagelet_router_tenants",
        "pagelet_router_keys_file_broken",
    )
)
"""What each worker process of a router sees for itself; anything else adds up."""
