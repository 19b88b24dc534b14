"""Writes Grafana's dashboards, charts/pagelet/dashboards/*.json, from the panels below.

    .venv/bin/python scripts/dashboards.py

In JSON a dashboard is a thousand lines, of which a dozen say something; here each panel is one
call. `tests/charts` runs every query against a real Prometheus.
"""

from pathlib import Path
from typing import Final

from grafana import Dashboard, Panel, Query, render

FOLDER: Final = Path(__file__).parents[1] / "charts/pagelet/dashboards"


def _panel(title: str, unit: str, *queries: Query, description: str = "") -> Panel:
    return Panel(title, unit, queries, description)


def _quantiles(metric: str, labels: str, by: str = "") -> tuple[Query, ...]:
    """Median and tails of a histogram."""
    groups, legend = (f"le, {by}", f" {{{{{by}}}}}") if by else ("le", "")
    rate = f"sum by ({groups}) (rate({metric}_bucket{{{labels}}}[$__rate_interval]))"
    return tuple(
        (f"histogram_quantile({share}, {rate})", f"p{name}{legend}")
        for share, name in ((0.5, 50), (0.9, 90), (0.99, 99))
    )


def _rate(metric: str, labels: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def _rates(metric: str, labels: str, by: str, legend: str) -> Query:
    return _rate(metric, labels, by), legend


def _sums(metric: str, labels: str, by: str, legend: str) -> Query:
    return f"sum by ({by}) ({metric}{{{labels}}})", legend


_MODEL: Final = 'namespace=~"$namespace",model=~"$model"'
_ROUTER: Final = 'namespace=~"$namespace",instance=~"$instance"'
_ENGINE: Final = 'namespace=~"$namespace",model_name=~"$model_name",instance=~"$instance"'
_R: Final = "pagelet_router_"
_O: Final = "pagelet_operator_"

SERVICE: Final = Dashboard(
    "service",
    "Pagelet / Service",
    # Of a metric that adapters are counted in too; they have no replicas of their own.
    (("namespace", f"{_R}replicas"), ("model", f"{_R}retries_total")),
    (
        (
            "Answers",
            (
                _panel(
                    "Requests by HTTP status",
                    "reqps",
                    _rates(f"{_R}requests_total", _MODEL, "code", "{{code}}"),
                ),
                _panel(
                    "Share of failed requests",
                    "percentunit",
                    (
                        f'(sum(rate({_R}requests_total{{{_MODEL},code=~"5.."}}[$__rate_interval])) '
                        "or vector(0)) / "
                        f"sum(rate({_R}requests_total{{{_MODEL}}}[$__rate_interval]))",
                        "failed",
                    ),
                    description="Answered with a 5xx after all retries.",
                ),
                _panel(
                    "Time to the first token",
                    "s",
                    *_quantiles(f"{_R}time_to_first_token_seconds", _MODEL),
                ),
                _panel(
                    "Time of a request", "s", *_quantiles(f"{_R}request_duration_seconds", _MODEL)
                ),
            ),
        ),
        (
            "Demand and replicas",
            (
                _panel(
                    "Waiting and held requests",
                    "short",
                    _sums(f"{_R}waiting_requests", _MODEL, "model", "waiting {{model}}"),
                    _sums(f"{_R}held_requests", _MODEL, "model", "held {{model}}"),
                    description="Held: there is no replica at all.",
                ),
                _panel(
                    "Backlog",
                    "s",
                    _sums(f"{_R}backlog_seconds", _MODEL, "model, pool", "{{model}} {{pool}}"),
                    description="Prompt tokens that wait or are prefilled, over the rate of all "
                    "replicas.",
                ),
                _panel(
                    "Replicas: asked for by demand, and there",
                    "short",
                    (
                        f"sum by (model, target) ({_R}demand_replicas{{{_MODEL}}})",
                        "{{model}} wanted for {{target}}",
                    ),
                    (
                        f"max by (model, pool, state) ({_R}replicas{{{_MODEL}}}) > 0 "
                        f'or max by (model, pool, state) ({_R}replicas{{{_MODEL},state="ready"}})',
                        "{{model}} {{pool}} {{state}}",
                    ),
                ),
                _panel(
                    "Answers in flight, and room for them",
                    "short",
                    _sums(f"{_R}inflight_answers", _MODEL, "model", "in flight {{model}}"),
                    (f"max by (model) ({_R}capacity_answers{{{_MODEL}}})", "room {{model}}"),
                ),
            ),
        ),
        (
            "Tokens",
            (
                _panel(
                    "Tokens a second",
                    "short",
                    _rates(f"{_R}prompt_tokens_total", _MODEL, "model", "prompts {{model}}"),
                    _rates(f"{_R}cached_tokens_total", _MODEL, "model", "cached {{model}}"),
                    _rates(f"{_R}generated_tokens_total", _MODEL, "model", "generated {{model}}"),
                ),
                _panel(
                    "Share of prompt tokens found in a cache",
                    "percentunit",
                    (
                        f"{_rate(f'{_R}cached_tokens_total', _MODEL, 'model')} / "
                        f"{_rate(f'{_R}prompt_tokens_total', _MODEL, 'model')}",
                        "{{model}}",
                    ),
                ),
                _panel(
                    "Tokens a second by tenant",
                    "short",
                    (
                        f"topk(10, {_rate(f'{_R}generated_tokens_total', _MODEL, 'tenant')})",
                        "{{tenant}}",
                    ),
                    description="Generated ones, of the ten tenants that have most.",
                ),
                _panel(
                    "Replicas kept busy by tenant",
                    "short",
                    (
                        f"topk(10, {_rate(f'{_R}replica_seconds_total', _MODEL, 'tenant')})",
                        "{{tenant}}",
                    ),
                    description="Replica seconds a second, shared evenly by the answers that a "
                    "replica works on at once.",
                ),
            ),
        ),
    ),
)

ROUTER: Final = Dashboard(
    "router",
    "Pagelet / Router",
    (("namespace", f"{_R}open_requests"), ("instance", f"{_R}open_requests")),
    (
        (
            "The router itself",
            (
                _panel("Added by the router", "s", *_quantiles(f"{_R}overhead_seconds", _ROUTER)),
                _panel("Time in its queue", "s", *_quantiles(f"{_R}queue_wait_seconds", _ROUTER)),
                _panel(
                    "Open requests",
                    "short",
                    _sums(f"{_R}open_requests", _ROUTER, "instance", "{{instance}}"),
                ),
                _panel(
                    "Refused requests by reason",
                    "reqps",
                    _rates(f"{_R}rejected_requests_total", _ROUTER, "reason", "{{reason}}"),
                ),
                _panel(
                    "CPU",
                    "short",
                    (
                        f"rate(process_cpu_seconds_total{{{_ROUTER}}}[$__rate_interval]) "
                        f"and on (instance) {_R}open_requests",
                        "{{instance}}",
                    ),
                    description="Cores.",
                ),
                _panel(
                    "Memory",
                    "bytes",
                    (
                        f"process_resident_memory_bytes{{{_ROUTER}}} "
                        f"and on (instance) {_R}open_requests",
                        "{{instance}}",
                    ),
                ),
            ),
        ),
        (
            "Replicas",
            (
                _panel(
                    "Replicas by state",
                    "short",
                    (
                        f"max by (model, pool, state) ({_R}replicas{{{_ROUTER}}})",
                        "{{model}} {{pool}} {{state}}",
                    ),
                ),
                _panel(
                    "Retries, failovers, resumed streams",
                    "reqps",
                    _rates(f"{_R}retries_total", _ROUTER, "model", "retries {{model}}"),
                    _rates(f"{_R}failovers_total", _ROUTER, "model", "failovers {{model}}"),
                    _rates(f"{_R}resumes_total", _ROUTER, "model", "resumes {{model}}"),
                ),
            ),
        ),
        (
            "Prefix locality",
            (
                _panel(
                    "Cached prompt tokens: predicted and found",
                    "short",
                    _rates(
                        f"{_R}predicted_hit_tokens_total", _ROUTER, "model", "predicted {{model}}"
                    ),
                    _rates(f"{_R}actual_hit_tokens_total", _ROUTER, "model", "found {{model}}"),
                ),
                _panel(
                    "How far a prediction is off",
                    "short",
                    *_quantiles(f"{_R}hit_error_tokens", _ROUTER),
                    description="Tokens, either way.",
                ),
                _panel(
                    "Blocks in the index",
                    "short",
                    (f"max by (model, pool) ({_R}index_blocks{{{_ROUTER}}})", "{{model}} {{pool}}"),
                ),
                _panel(
                    "KV events: replicas that send them, gaps, replays",
                    "short",
                    (
                        f"max by (model, pool) ({_R}replicas_with_events{{{_ROUTER}}})",
                        "replicas {{model}} {{pool}}",
                    ),
                    _rates(f"{_R}kv_event_gaps_total", _ROUTER, "model, pool", "gaps {{model}}"),
                    _rates(
                        f"{_R}kv_event_replays_total", _ROUTER, "model, pool", "replays {{model}}"
                    ),
                ),
            ),
        ),
    ),
)

_E: Final = "model_name, instance, engine"
_SHOWN: Final = "{{instance}} {{engine}}"

ENGINE: Final = Dashboard(
    "engine",
    "Pagelet / Engine",
    (
        ("namespace", "vllm:num_requests_running"),
        ("model_name", "vllm:num_requests_running"),
        ("instance", "vllm:num_requests_running"),
    ),
    (
        (
            "Latency",
            (
                _panel(
                    "Time to the first token",
                    "s",
                    *_quantiles("vllm:time_to_first_token_seconds", _ENGINE),
                ),
                _panel(
                    "Time between tokens",
                    "s",
                    *_quantiles("vllm:inter_token_latency_seconds", _ENGINE),
                ),
                _panel(
                    "Time of an answer",
                    "s",
                    *_quantiles("vllm:e2e_request_latency_seconds", _ENGINE),
                ),
                _panel(
                    "Where the time goes",
                    "s",
                    *(
                        (
                            f"sum(rate(vllm:request_{part}_time_seconds_sum{{{_ENGINE}}}"
                            "[$__rate_interval])) / "
                            f"sum(rate(vllm:request_{part}_time_seconds_count{{{_ENGINE}}}"
                            "[$__rate_interval]))",
                            part,
                        )
                        for part in ("queue", "prefill", "decode")
                    ),
                    description="Means of the answers that ended.",
                ),
            ),
        ),
        (
            "Scheduler",
            (
                _panel(
                    "Requests running and waiting",
                    "short",
                    _sums("vllm:num_requests_running", _ENGINE, _E, f"running {_SHOWN}"),
                    _sums("vllm:num_requests_waiting", _ENGINE, _E, f"waiting {_SHOWN}"),
                ),
                _panel(
                    "Used share of the KV cache",
                    "percentunit",
                    _sums("vllm:kv_cache_usage_perc", _ENGINE, _E, _SHOWN),
                ),
                _panel(
                    "Prefix cache: share of prompt tokens found",
                    "percentunit",
                    (
                        f"{_rate('vllm:prefix_cache_hits_total', _ENGINE, _E)} / "
                        f"{_rate('vllm:prefix_cache_queries_total', _ENGINE, _E)}",
                        _SHOWN,
                    ),
                ),
                _panel(
                    "Preemptions",
                    "reqps",
                    _rates("vllm:num_preemptions_total", _ENGINE, _E, _SHOWN),
                ),
                _panel(
                    "Steps a second",
                    "short",
                    _rates("vllm:iteration_tokens_total_count", _ENGINE, _E, _SHOWN),
                ),
                _panel(
                    "Tokens of a step", "short", *_quantiles("vllm:iteration_tokens_total", _ENGINE)
                ),
                _panel(
                    "Age of the step",
                    "s",
                    (
                        "sum by (instance, engine) (pagelet_engine_step_age_seconds{namespace=~"
                        '"$namespace",instance=~"$instance"})',
                        _SHOWN,
                    ),
                    description="Tens of seconds are a hang.",
                ),
                _panel(
                    "Life of a cached block",
                    "s",
                    *_quantiles("vllm:kv_block_lifetime_seconds", _ENGINE),
                    description="Of those that were evicted.",
                ),
            ),
        ),
        (
            "Work",
            (
                _panel(
                    "Tokens a second",
                    "short",
                    _rates("vllm:prompt_tokens_total", _ENGINE, _E, f"prompts {_SHOWN}"),
                    _rates("vllm:generation_tokens_total", _ENGINE, _E, f"generated {_SHOWN}"),
                ),
                _panel(
                    "Answers by how they ended",
                    "reqps",
                    _rates(
                        "vllm:request_success_total",
                        _ENGINE,
                        "finished_reason",
                        "{{finished_reason}}",
                    ),
                ),
                _panel(
                    "Tokens of a prompt",
                    "short",
                    *_quantiles("vllm:request_prompt_tokens", _ENGINE),
                ),
                _panel(
                    "Tokens of an answer",
                    "short",
                    *_quantiles("vllm:request_generation_tokens", _ENGINE),
                ),
            ),
        ),
        (
            "The process",
            (
                _panel(
                    "Engine cores up, and starts",
                    "short",
                    _sums("pagelet_engine_up", _ROUTER, "instance, engine", f"up {_SHOWN}"),
                    _sums(
                        "pagelet_engine_starts_total",
                        _ROUTER,
                        "instance, engine",
                        f"starts {_SHOWN}",
                    ),
                ),
                _panel(
                    "Refused requests by reason",
                    "reqps",
                    _rates("pagelet_rejected_requests_total", _ROUTER, "reason", "{{reason}}"),
                ),
                _panel(
                    "GPU memory in use by others",
                    "bytes",
                    (
                        f"max by (instance, gpu) (pagelet_gpu_foreign_memory_bytes{{{_ROUTER}}})",
                        "{{instance}} {{gpu}}",
                    ),
                    description="Of the GPUs of a replica; at least. Empty on CPUs.",
                ),
            ),
        ),
    ),
)

_OPERATOR: Final = 'namespace=~"$namespace"'

OPERATOR: Final = Dashboard(
    "operator",
    "Pagelet / Operator",
    (("namespace", f"{_O}leader"),),
    (
        (
            "Services",
            (
                _panel(
                    "Services by condition",
                    "short",
                    _sums(
                        f"{_O}services", _OPERATOR, "condition, status", "{{condition}} {{status}}"
                    ),
                ),
                _panel(
                    "Waiting for a reconcile",
                    "short",
                    _sums(f"{_O}queue_length", _OPERATOR, "instance", "{{instance}}"),
                ),
            ),
        ),
        (
            "Reconciling",
            (
                _panel(
                    "Reconciles and errors",
                    "short",
                    _rates(f"{_O}reconcile_seconds_count", _OPERATOR, "instance", "reconciles"),
                    _rates(f"{_O}reconcile_errors_total", _OPERATOR, "instance", "errors"),
                ),
                _panel(
                    "Time of a reconcile", "s", *_quantiles(f"{_O}reconcile_seconds", _OPERATOR)
                ),
                _panel(
                    "Objects applied and deleted",
                    "short",
                    _rates(f"{_O}applied_objects_total", _OPERATOR, "instance", "applied"),
                    _rates(f"{_O}pruned_objects_total", _OPERATOR, "instance", "deleted"),
                ),
                _panel(
                    "Requests to the API server",
                    "reqps",
                    _rates(f"{_O}api_requests_total", _OPERATOR, "instance", "{{instance}}"),
                ),
                _panel(
                    "Scaling: changes, and services of unknown demand",
                    "short",
                    _rates(f"{_O}rescales_total", _OPERATOR, "instance", "changes"),
                    _sums(f"{_O}unknown_demands", _OPERATOR, "instance", "unknown"),
                    description="Of those that the operator scales itself. An unknown demand holds "
                    "the count.",
                ),
                _panel(
                    "Who leads",
                    "short",
                    _sums(f"{_O}leader", _OPERATOR, "instance", "{{instance}}"),
                ),
            ),
        ),
    ),
)

DASHBOARDS: Final = (SERVICE, ROUTER, ENGINE, OPERATOR)


def main() -> None:
    """Entry point."""
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(render(dashboard))


if __name__ == "__main__":
    main()
