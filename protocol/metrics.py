"""Names, types, labels and buckets of all metrics, as data.

Names with the prefix `vllm:` and their labels follow vLLM 0.32, so that dashboards, KEDA triggers
and Gateway API endpoint pickers written for it work unchanged. Every series is there from process
start, since an autoscaler reads an absent metric as 0 or not at all.
"""

import dataclasses
from typing import Literal

MetricKind = Literal["gauge", "counter", "histogram"]

_SECONDS_TO_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_SECONDS_BETWEEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_SECONDS_OF_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_SECONDS_OF_BLOCK = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)
_TOKENS_OF_STEP = tuple(float(2**power) for power in (0, *range(3, 15)))


def token_buckets(max_model_len: int) -> tuple[float, ...]:
    """Buckets for lengths in tokens: 1, 2, 5, 10, ... up to the model's context."""
    bounds, decade = [1.0], 1
    while decade < max_model_len:
        bounds += [float(decade * step) for step in (2, 5, 10)]
        decade *= 10
    return tuple(bound for bound in bounds if bound <= max_model_len)


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    `name` is as samples show it, so a counter's ends in `_total`. Labels without `values` are
    filled in by the exporter; one series exists for each of `values` of the last label.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ("model_name", "engine")
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] | Literal["tokens"] = ()


def _with(label: str) -> tuple[str, ...]:
    return ("model_name", "engine", label)


def speculation_metrics(num_speculative_tokens: int) -> tuple[Metric, ...]:
    """Of an engine that drafts up to so many tokens at once; there are none while that is off."""
    if num_speculative_tokens == 0:
        return ()
    return (
        Metric(
            "vllm:spec_decode_num_drafts_total",
            "counter",
            "Times that tokens were drafted for a request.",
        ),
        Metric("vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted."),
        Metric(
            "vllm:spec_decode_num_accepted_tokens_total",
            "counter",
            "Drafted tokens that the model drew as well.",
        ),
        Metric(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "counter",
            "Drafted tokens that the model drew as well, by their place in the draft.",
            _with("position"),
            tuple(str(position) for position in range(num_speculative_tokens)),
        ),
    )


ENGINE_METRICS: tuple[Metric, ...] = (
    Metric("vllm:num_requests_running", "gauge", "Requests in execution batches."),
    Metric("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed."),
    Metric(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Requests waiting, by reason: for capacity, or deferred until something else is ready.",
        _with("reason"),
        ("capacity", "deferred"),
    ),
    Metric("vllm:kv_cache_usage_perc", "gauge", "Used share of the KV cache; 1 is all of it."),
    Metric(
        "vllm:engine_sleep_state",
        "gauge",
        "1 for the state that the engine is in.",
        _with("sleep_state"),
        ("awake", "weights_offloaded", "discard_all"),
    ),
    Metric(
        "vllm:cache_config_info",
        "gauge",
        "The KV cache's configuration as labels; num_gpu_blocks is 0 until it is allocated.",
        (*_with("block_size"), "num_gpu_blocks", "enable_prefix_caching"),
    ),
    Metric(
        "vllm:lora_requests_info",
        "gauge",
        "Adapters in use as labels; the value is the time of the report in Unix seconds.",
        ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    ),
    Metric("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the cache."),
    Metric("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the cache."),
    Metric(
        "vllm:external_prefix_cache_queries_total",
        "counter",
        "Prompt tokens looked up in a cache outside of the engine.",
    ),
    Metric(
        "vllm:external_prefix_cache_hits_total",
        "counter",
        "Prompt tokens found in a cache outside of the engine.",
    ),
    Metric("vllm:mm_cache_queries_total", "counter", "Multi-modal items looked up in the cache."),
    Metric("vllm:mm_cache_hits_total", "counter", "Multi-modal items found in the cache."),
    Metric("vllm:num_preemptions_total", "counter", "Requests preempted for want of KV blocks."),
    Metric(
        "vllm:prompt_tokens_total",
        "counter",
        "Prompt tokens of answers that ended after their prompt was processed.",
    ),
    Metric(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        "The same, by where their KV came from.",
        _with("source"),
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    Metric("vllm:prompt_tokens_cached_total", "counter", "The same, those found in the cache."),
    Metric("vllm:generation_tokens_total", "counter", "Tokens generated."),
    Metric(
        "vllm:request_success_total",
        "counter",
        "Answers that ended, by reason.",
        _with("finished_reason"),
        ("stop", "length", "abort", "error"),
    ),
    Metric("vllm:corrupted_requests_total", "counter", "Requests with NaN in their logits."),
    Metric(
        "vllm:admission_rejections_total",
        "counter",
        "Requests refused as the queue was full, by the bound that they met.",
        _with("reason"),
        ("max_num_queued_reqs", "max_num_queued_tokens"),
    ),
    Metric(
        "vllm:time_to_first_token_seconds",
        "histogram",
        "From a request's arrival to its first token.",
        buckets=_SECONDS_TO_FIRST,
    ),
    Metric(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "From a token to the next of the same answer.",
        buckets=_SECONDS_BETWEEN,
    ),
    Metric(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "Decode time of an answer over its tokens after the first.",
        buckets=_SECONDS_BETWEEN,
    ),
    Metric(
        "vllm:e2e_request_latency_seconds",
        "histogram",
        "From a request's arrival to its last token.",
        buckets=_SECONDS_OF_REQUEST,
    ),
    Metric(
        "vllm:request_queue_time_seconds",
        "histogram",
        "From a request's arrival until it first left the waiting queue.",
        buckets=_SECONDS_OF_REQUEST,
    ),
    Metric(
        "vllm:request_inference_time_seconds",
        "histogram",
        "From when a request left the waiting queue to its last token.",
        buckets=_SECONDS_OF_REQUEST,
    ),
    Metric(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "From when a request left the waiting queue to its first token.",
        buckets=_SECONDS_OF_REQUEST,
    ),
    Metric(
        "vllm:request_decode_time_seconds",
        "histogram",
        "From an answer's first token to its last.",
        buckets=_SECONDS_OF_REQUEST,
    ),
    Metric("vllm:request_prompt_tokens", "histogram", "Prompt tokens a request.", buckets="tokens"),
    Metric("vllm:request_generation_tokens", "histogram", "Tokens of an answer.", buckets="tokens"),
    Metric(
        "vllm:iteration_tokens_total", "histogram", "Tokens of a step.", buckets=_TOKENS_OF_STEP
    ),
    Metric(
        "vllm:request_max_num_generation_tokens",
        "histogram",
        "Tokens of an answer; each of the n answers to one request counts alone.",
        buckets="tokens",
    ),
    Metric(
        "vllm:request_params_n",
        "histogram",
        "Answers that a request asked for.",
        buckets=(1.0, 2.0, 5.0, 10.0, 20.0),
    ),
    Metric(
        "vllm:request_params_max_tokens",
        "histogram",
        "The limit that a request set for its answer, in tokens.",
        buckets="tokens",
    ),
    Metric(
        "vllm:request_prefill_kv_computed_tokens",
        "histogram",
        "Prompt tokens of a request that were computed, not found in the cache.",
        buckets="tokens",
    ),
    Metric(
        "vllm:kv_block_lifetime_seconds",
        "histogram",
        "Lifetime of a sample of cached KV blocks.",
        buckets=_SECONDS_OF_BLOCK,
    ),
    Metric(
        "vllm:kv_block_idle_before_evict_seconds",
        "histogram",
        "Idle time before eviction of a sample of cached KV blocks.",
        buckets=_SECONDS_OF_BLOCK,
    ),
    Metric(
        "vllm:kv_block_reuse_gap_seconds",
        "histogram",
        "Time between uses of a sample of cached KV blocks.",
        buckets=_SECONDS_OF_BLOCK,
    ),
)

ALIASES: tuple[Metric, ...] = (
    Metric("vllm:gpu_cache_usage_perc", "gauge", "Old name of vllm:kv_cache_usage_perc."),
    Metric(
        "vllm:gpu_prefix_cache_queries_total",
        "counter",
        "Old name of vllm:prefix_cache_queries_total.",
    ),
    Metric(
        "vllm:gpu_prefix_cache_hits_total", "counter", "Old name of vllm:prefix_cache_hits_total."
    ),
    Metric(
        "vllm:gpu_prefix_cache_hit_rate",
        "gauge",
        "Share of looked up prompt tokens that were found, since process start.",
    ),
    Metric(
        "vllm:time_per_output_token_seconds",
        "histogram",
        "Old name of vllm:inter_token_latency_seconds.",
        buckets=_SECONDS_BETWEEN,
    ),
    Metric("vllm:num_requests_swapped", "gauge", "0: requests are never swapped out."),
    Metric("vllm:cpu_cache_usage_perc", "gauge", "0: there is no second cache in host memory."),
    Metric("vllm:cpu_prefix_cache_hit_rate", "gauge", "0: there is no second cache."),
)
"""Names that vLLM dropped but that shipped dashboards and routers still query."""

FOREIGN_GPU_MEMORY = Metric(
    "pagelet_gpu_foreign_memory_bytes",
    "gauge",
    "In use of a GPU that the engine core takes, and not its own; no series without GPUs.",
    ("engine", "gpu"),
)
SERVER_METRICS: tuple[Metric, ...] = (
    Metric("pagelet_draining", "gauge", "1 while the server finishes and takes no more.", ()),
    Metric("pagelet_open_requests", "gauge", "HTTP requests for the model being answered.", ()),
    Metric(
        "pagelet_rejected_requests_total",
        "counter",
        "Requests that got an error in place of an answer, by reason.",
        ("reason",),
        (
            "auth",
            "draining",
            "engine_down",
            "invalid",
            "queue_full",
            "rate_limit",
            "timeout",
            "too_large",
        ),
    ),
    Metric(
        "pagelet_keys_file_broken",
        "gauge",
        "1 while the file of API keys cannot be read and the last keys stay in force.",
        (),
    ),
    Metric("pagelet_engine_up", "gauge", "1 while the engine core is connected.", ("engine",)),
    Metric(
        "pagelet_engine_step_age_seconds",
        "gauge",
        "For how long the engine core has been at its step, if it has work; else 0.",
        ("engine",),
    ),
    Metric(
        "pagelet_engine_starts_total",
        "counter",
        "Times that the engine core came up, the first included.",
        ("engine",),
    ),
    FOREIGN_GPU_MEMORY,
)
