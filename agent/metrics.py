"""The metrics of `pagelet.protocol.metrics`, kept from what the engine and the server report."""

import time
from collections.abc import Mapping, Sequence

from pagelet.engine.observer import EngineObserver, RequestTimes
from pagelet.process.own_metrics import ProcessMetrics
from pagelet.protocol import metrics as names
from pagelet.protocol.engine import EngineCoreReady, SchedulerStats, SpeculationStats
from pagelet.protocol.exposition import Family, Histogram, Scalar, render


class _EngineSeries:
    """The series of one engine core, by metric name (and value of the last label)."""

    def __init__(self) -> None:
        self.scalars: dict[str, Scalar] = {}
        self.labelled: dict[tuple[str, str], Scalar] = {}
        self.histograms: dict[str, Histogram] = {}
        self.adapters: tuple[list[str], list[str]] = [], []
        """Of running requests, and of waiting ones."""


class Metrics(EngineObserver):
    """All metrics of one agent. Not thread-safe: calls come on the server's event loop."""

    def __init__(
        self,
        *,
        model_name: str,
        max_model_len: int,
        block_size: int,
        enable_prefix_caching: bool,
        num_engines: int = 1,
        aliases: bool = True,
        num_speculative_tokens: int = 0,
        max_loras: int = 0,
    ) -> None:
        """`num_speculative_tokens` is the most that are drafted at once; 0: none ever are.
        `max_loras` is the most adapters of one step; 0: requests can have none."""
        self._model_name = model_name
        self._block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._token_buckets = names.token_buckets(max_model_len)
        self._families: dict[str, Family] = {}
        self._engines = [_EngineSeries() for _ in range(num_engines)]
        self._server: dict[tuple[str, str], Scalar] = {}
        self._aliases = aliases
        self._max_loras = max_loras
        for metric in (
            *names.ENGINE_METRICS,
            *names.speculation_metrics(num_speculative_tokens),
            *(names.ALIASES if aliases else ()),
        ):
            self._families[metric.name] = Family(metric.name, metric.kind, metric.help)
            for index, series in enumerate(self._engines):
                self._add_engine_series(metric, index, series)
        for metric in names.SERVER_METRICS:
            self._families[metric.name] = Family(metric.name, metric.kind, metric.help)
            if metric is not names.FOREIGN_GPU_MEMORY:  # which GPUs there are comes out later
                self._add_server_series(metric, num_engines)
        self._foreign: dict[tuple[int, str], Scalar] = {}
        for index in range(num_engines):
            self._engines[index].labelled["vllm:engine_sleep_state", "awake"].value = 1
            self._set_cache_info(index, 0)
        self._set_lora_info()
        self._process = ProcessMetrics()

    def _add_engine_series(self, metric: names.Metric, index: int, engine: _EngineSeries) -> None:
        if metric.name in ("vllm:cache_config_info", "vllm:lora_requests_info"):
            return  # their labels hold what they tell
        family = self._families[metric.name]
        labels = [("model_name", self._model_name), ("engine", str(index))]
        if metric.kind == "histogram":
            bounds = self._token_buckets if metric.buckets == "tokens" else metric.buckets
            histogram = Histogram(metric.name, labels, [float(bound) for bound in bounds])
            engine.histograms[metric.name] = histogram
            family.series.append(histogram)
        elif metric.values:
            for value in metric.values:
                scalar = Scalar(metric.name, [*labels, (metric.labels[-1], value)])
                engine.labelled[metric.name, value] = scalar
                family.series.append(scalar)
        else:
            scalar = Scalar(metric.name, labels)
            engine.scalars[metric.name] = scalar
            family.series.append(scalar)

    def _add_server_series(self, metric: names.Metric, num_engines: int) -> None:
        values: Sequence[str] = metric.values
        if metric.labels == ("engine",):
            values = [str(index) for index in range(num_engines)]
        for value in values or [""]:
            scalar = Scalar(metric.name, [(label, value) for label in metric.labels])
            self._server[metric.name, value] = scalar
            self._families[metric.name].series.append(scalar)

    def _set_cache_info(self, index: int, num_blocks: int) -> None:
        info = Scalar(
            "vllm:cache_config_info",
            [
                ("model_name", self._model_name),
                ("engine", str(index)),
                ("block_size", str(self._block_size)),
                ("num_gpu_blocks", str(num_blocks)),
                ("enable_prefix_caching", str(self._enable_prefix_caching)),
            ],
        )
        info.value = 1
        series = self._families["vllm:cache_config_info"].series
        series[index : index + 1] = [info]

    def _set_lora_info(self) -> None:
        """One series for all engine cores, as vLLM has it."""
        each = zip(*(engine.adapters for engine in self._engines), strict=True)
        running, waiting = (",".join(sorted(set().union(*names))) for names in each)
        self._lora_info = Scalar(
            "vllm:lora_requests_info",
            [
                ("max_lora", str(self._max_loras)),
                ("running_lora_adapters", running),
                ("waiting_lora_adapters", waiting),
            ],
        )
        self._families["vllm:lora_requests_info"].series = [self._lora_info]

    def on_ready(self, ready: EngineCoreReady) -> None:
        """Notes the size of the KV cache."""
        self._set_cache_info(ready.engine_index, ready.num_kv_blocks)
        self._server["pagelet_engine_up", str(ready.engine_index)].value = 1
        self._server["pagelet_engine_starts_total", str(ready.engine_index)].value += 1

    def on_lost(self, engine_index: int) -> None:
        """An engine that is gone runs nothing and has no cache."""
        self._server["pagelet_engine_up", str(engine_index)].value = 0
        self.on_stats(engine_index, SchedulerStats())

    def on_stats(self, engine_index: int, stats: SchedulerStats) -> None:
        """Takes over the scheduler's state and adds its counts."""
        engine = self._engines[engine_index]
        scalars, labelled = engine.scalars, engine.labelled
        scalars["vllm:num_requests_running"].value = stats.num_running
        scalars["vllm:num_requests_waiting"].value = stats.num_waiting
        by_reason = "vllm:num_requests_waiting_by_reason"
        labelled[by_reason, "deferred"].value = stats.num_waiting_deferred
        labelled[by_reason, "capacity"].value = stats.num_waiting - stats.num_waiting_deferred
        scalars["vllm:kv_cache_usage_perc"].value = stats.kv_cache_usage
        scalars["vllm:prefix_cache_queries_total"].value += stats.prefix_cache_queries
        scalars["vllm:prefix_cache_hits_total"].value += stats.prefix_cache_hits
        scalars["vllm:num_preemptions_total"].value += stats.num_preemptions
        if self._max_loras:
            adapters = (stats.running_adapters, stats.waiting_adapters)
            if adapters != engine.adapters:
                engine.adapters = adapters
                self._set_lora_info()
        if stats.speculation is not None:
            _count_drafts(engine, stats.speculation)
        if stats.num_scheduled_tokens:
            histogram = engine.histograms["vllm:iteration_tokens_total"]
            histogram.observe(stats.num_scheduled_tokens)
        for stay in stats.evicted:
            engine.histograms["vllm:kv_block_lifetime_seconds"].observe(stay.lifetime)
            engine.histograms["vllm:kv_block_idle_before_evict_seconds"].observe(stay.idle)
            for gap in stay.reuse_gaps:
                engine.histograms["vllm:kv_block_reuse_gap_seconds"].observe(gap)

    def on_first_token(self, engine_index: int, seconds: float) -> None:
        """Observes the time to first token."""
        engine = self._engines[engine_index]
        engine.histograms["vllm:time_to_first_token_seconds"].observe(seconds)
        engine.scalars["vllm:generation_tokens_total"].value += 1

    def on_tokens(self, engine_index: int, tokens: int, seconds: float) -> None:
        """Observes the latency between tokens; tokens that came together share it evenly."""
        engine = self._engines[engine_index]
        engine.scalars["vllm:generation_tokens_total"].value += tokens
        engine.histograms["vllm:inter_token_latency_seconds"].observe(seconds / tokens, tokens)

    def on_finished(self, engine_index: int, times: RequestTimes) -> None:
        """Observes what is known only when an answer is over."""
        engine = self._engines[engine_index]
        engine.labelled["vllm:request_success_total", times.finish_reason].value += 1
        histograms = engine.histograms
        if times.params.max_tokens is not None:
            histograms["vllm:request_params_max_tokens"].observe(times.params.max_tokens)
        if times.scheduled:
            queued = times.scheduled - times.arrival
            histograms["vllm:request_queue_time_seconds"].observe(queued)
        if times.first_token:
            self._on_prefilled(engine, times)

    def _on_prefilled(self, engine: _EngineSeries, times: RequestTimes) -> None:
        computed = times.num_prompt_tokens - times.num_cached_tokens
        engine.scalars["vllm:prompt_tokens_total"].value += times.num_prompt_tokens
        engine.scalars["vllm:prompt_tokens_cached_total"].value += times.num_cached_tokens
        by_source = "vllm:prompt_tokens_by_source_total"
        engine.labelled[by_source, "local_compute"].value += computed
        engine.labelled[by_source, "local_cache_hit"].value += times.num_cached_tokens
        decode = times.last_token - times.first_token
        generated = times.num_generated_tokens
        for name, value in (
            ("vllm:request_prompt_tokens", times.num_prompt_tokens),
            ("vllm:request_prefill_kv_computed_tokens", computed),
            ("vllm:request_generation_tokens", generated),
            ("vllm:request_max_num_generation_tokens", generated),
            ("vllm:e2e_request_latency_seconds", times.last_token - times.arrival),
            ("vllm:request_inference_time_seconds", times.last_token - times.scheduled),
            ("vllm:request_prefill_time_seconds", times.first_token - times.scheduled),
            ("vllm:request_decode_time_seconds", decode),
        ):
            engine.histograms[name].observe(value)
        if generated > 1:
            per_token = engine.histograms["vllm:request_time_per_output_token_seconds"]
            per_token.observe(decode / (generated - 1))

    def on_request(self, engine_index: int, num_answers: int) -> None:
        """A prompt was taken, with `num_answers` to give to it (n)."""
        self._engines[engine_index].histograms["vllm:request_params_n"].observe(num_answers)

    def on_rejected(self, reason: str) -> None:
        """A request was refused before it reached the engine."""
        self._server["pagelet_rejected_requests_total", reason].value += 1
        if reason == "queue_full":
            name = "vllm:admission_rejections_total"
            # The queue is the server's, in front of all engine cores; the first stands for it.
            self._engines[0].labelled[name, "max_num_queued_reqs"].value += 1

    def set_server_state(
        self,
        *,
        draining: bool,
        open_requests: int,
        keys_file_broken: bool,
        step_ages: Sequence[float],
        foreign_gpu_memory: Sequence[Mapping[str, int]],
    ) -> None:
        """What the server says of itself, and sees of its engine cores: `step_ages` in seconds, and
        bytes of their GPUs that are others'."""
        self._server["pagelet_draining", ""].value = int(draining)
        self._server["pagelet_open_requests", ""].value = open_requests
        self._server["pagelet_keys_file_broken", ""].value = int(keys_file_broken)
        for index, age in enumerate(step_ages):
            self._server["pagelet_engine_step_age_seconds", str(index)].value = age
        for index, by_gpu in enumerate(foreign_gpu_memory):
            for gpu, used in by_gpu.items():
                self._foreign_series(index, gpu).value = used

    def _foreign_series(self, index: int, gpu: str) -> Scalar:
        if (index, gpu) not in self._foreign:
            name = names.FOREIGN_GPU_MEMORY.name
            scalar = Scalar(name, [("engine", str(index)), ("gpu", gpu)])
            self._foreign[index, gpu] = scalar
            self._families[name].series.append(scalar)
        return self._foreign[index, gpu]

    def render(self) -> bytes:
        """Prometheus' text format."""
        self._lora_info.value = time.time()
        if self._aliases:
            for engine in self._engines:
                _copy_aliases(engine)
        return render(list(self._families.values())) + self._process.render()


def _count_drafts(engine: _EngineSeries, stats: SpeculationStats) -> None:
    prefix = "vllm:spec_decode_num"
    engine.scalars[f"{prefix}_drafts_total"].value += stats.num_drafts
    engine.scalars[f"{prefix}_draft_tokens_total"].value += stats.num_draft_tokens
    engine.scalars[f"{prefix}_accepted_tokens_total"].value += stats.num_accepted_tokens
    for position, count in enumerate(stats.accepted_per_position):
        name = f"{prefix}_accepted_tokens_per_pos_total"
        engine.labelled[name, str(position)].value += count


def _copy_aliases(engine: _EngineSeries) -> None:
    scalars = engine.scalars
    queries = scalars["vllm:prefix_cache_queries_total"].value
    hits = scalars["vllm:prefix_cache_hits_total"].value
    scalars["vllm:gpu_cache_usage_perc"].value = scalars["vllm:kv_cache_usage_perc"].value
    scalars["vllm:gpu_prefix_cache_queries_total"].value = queries
    scalars["vllm:gpu_prefix_cache_hits_total"].value = hits
    scalars["vllm:gpu_prefix_cache_hit_rate"].value = hits / queries if queries else 0.0
    between = engine.histograms["vllm:inter_token_latency_seconds"]
    engine.histograms["vllm:time_per_output_token_seconds"].copy(between)
