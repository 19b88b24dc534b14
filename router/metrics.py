"""The metrics of `pagelet.protocol.router_metrics`, kept from requests and taken from pools."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from pagelet.process.own_metrics import ProcessMetrics
from pagelet.protocol import router_metrics as names
from pagelet.protocol.autoscaling.demand import TARGETS, Target
from pagelet.protocol.exposition import Family, Histogram, Scalar, render
from pagelet.protocol.metrics import Metric
from pagelet.router.record import RequestRecord

OTHER: Final = "other"
"""The value of a label whose own values have become too many."""
ANONYMOUS: Final = "anonymous"
"""The tenant of requests without a key."""
_MOST_VALUES: Final = 100

Series = TypeVar("Series", bound=Scalar | Histogram)


class _Vector(Generic[Series]):
    """The series of one metric, made when they are first needed."""

    def __init__(
        self, metric: Metric, make: Callable[[str, list[tuple[str, str]]], Series]
    ) -> None:
        self._metric = metric
        self._make = make
        self._series: dict[tuple[str, ...], Series] = {}
        self.family = Family(metric.name, metric.kind, metric.help)

    def __call__(self, *values: str) -> Series:
        """The series with these values of the metric's labels."""
        series = self._series.get(values)
        if series is None:
            labels = list(zip(self._metric.labels, values, strict=True))
            series = self._series[values] = self._make(self._metric.name, labels)
            self.family.series.append(series)
        return series

    def clear(self) -> None:
        """Forgets all series."""
        self._series.clear()
        self.family.series.clear()


class LabelCap:
    """Bounds the values of one label: the first `most` are shown, all others as "other".

    Tenants come and go with their file, and a series is never forgotten, so without a bound a
    long-lived router would fill the memory of whoever scrapes it."""

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value to show."""
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


@dataclasses.dataclass(slots=True)
class PoolView:
    """What a pool looks like now, for its gauges."""

    model: str
    pool: str
    waiting_requests: int = 0
    held_requests: int = 0
    waiting_prompt_tokens: float = 0
    inflight_answers: int = 0
    capacity_answers: int = 0
    inflight_uncached_prefill_tokens: float = 0
    backlog_seconds: float = 0
    queued_prefill_seconds: float = 0
    prefill_load: float = 0
    decode_slots_in_use: int = 0
    decode_slots: int = 0
    kv_load: float = 0
    index_blocks: int = 0
    replicas: dict[str, int] = dataclasses.field(default_factory=dict)
    """By state, as `REPLICA_STATES` has them."""
    replicas_with_events: int = 0
    kv_event_gaps: int = 0
    kv_event_replays: int = 0
    service: str = ""
    demand: Mapping[Target, float] = dataclasses.field(default_factory=dict)
    """In replicas."""

    def values(self) -> dict[str, float]:
        """By metric; those with more labels are apart."""
        prefix = "pagelet_router_"
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("model", "pool", "replicas", "service", "demand")
        }
        counters = ("kv_event_gaps", "kv_event_replays")
        return {
            f"{prefix}{name}_total" if name in counters else prefix + name: value
            for name, value in fields.items()
        }


@dataclasses.dataclass(slots=True)
class ServerView:
    """What the server says of itself."""

    draining: bool = False
    open_requests: int = 0
    tenants: int = 0
    keys_file_broken: bool = False


class RouterMetrics:
    """All metrics of one worker. Not thread-safe: calls come on the event loop."""

    def __init__(self) -> None:
        every = (*names.REQUEST_METRICS, *names.POOL_METRICS, *names.SERVER_METRICS)
        self._scalars = {
            metric.name: _Vector(metric, Scalar) for metric in every if metric.kind != "histogram"
        }
        self._histograms = {
            metric.name: _histograms_of(metric) for metric in every if metric.kind == "histogram"
        }
        vectors = self._scalars | self._histograms
        self._families = [vectors[metric.name].family for metric in every]
        for reason in names.REJECTIONS:
            self._count("rejected_requests_total", reason, by=0)
        self._models, self._tenants = LabelCap(), LabelCap()
        self._adapters = LabelCap()  # apart, so that they leave models their places
        self._codes = LabelCap()
        self.set_server(ServerView())
        self._process = ProcessMetrics()

    def add_model(self, model: str) -> None:
        """Shows a model, also if it was not asked for yet."""
        label = self._models(model)
        for metric in names.REQUEST_METRICS:
            if metric.labels == ("model",):
                if metric.kind == "histogram":
                    self._histograms[metric.name](label)
                else:
                    self._scalars[metric.name](label)

    def on_rejected(self, reason: str) -> None:
        """Counts a request that got an error in place of an answer."""
        self._count("rejected_requests_total", reason)

    def on_finished(self, record: RequestRecord) -> None:
        """Counts a request for a model that is over, whatever became of it."""
        cap = self._adapters if record.adapter_of else self._models
        model = cap(record.model or "unknown")
        tenant = self._tenants(record.tenant or ANONYMOUS)
        self._count("requests_total", model, tenant, self._codes(str(record.status)))
        self._count("retries_total", model, by=record.retries)
        self._count("resumes_total", model, by=record.resumes)
        self._count("replica_seconds_total", model, tenant, by=record.replica_seconds)
        if record.retries and record.attempts[-1].outcome == "completed":
            self._count("failovers_total", model)
        if record.seconds is not None:
            self._observe("request_duration_seconds", model, record.seconds)
        if record.attempts:
            self._observe("queue_wait_seconds", model, record.waited_seconds)
        if record.overhead_seconds is not None:
            self._observe("overhead_seconds", model, record.overhead_seconds)
        if record.ttft_seconds is None:
            return
        self._observe("time_to_first_token_seconds", model, record.ttft_seconds)
        self._count("prompt_tokens_total", model, tenant, by=record.prompt_tokens)
        self._count("cached_tokens_total", model, tenant, by=record.cached_tokens or 0)
        self._count("generated_tokens_total", model, tenant, by=record.completion_tokens)
        if record.cached_tokens is not None and not record.resumes:
            predicted = record.attempts[-1].predicted_hit_tokens
            self._count("predicted_hit_tokens_total", model, by=predicted)
            self._count("actual_hit_tokens_total", model, by=record.cached_tokens)
            self._observe("hit_error_tokens", model, abs(predicted - record.cached_tokens))

    def set_pools(self, views: Iterable[PoolView]) -> None:
        """Shows pools as they are; those that are not among them are gone. Of pools that have the
        same labels, as those of models beyond the cap do, the sum is shown."""
        for metric in names.POOL_METRICS:
            self._scalars[metric.name].clear()
        for view in views:
            model = self._models(view.model)
            for name, value in view.values().items():
                self._scalars[name](model, view.pool).value += value
            for state in names.REPLICA_STATES:
                gauge = self._scalars["pagelet_router_replicas"](model, view.pool, state)
                gauge.value += view.replicas.get(state, 0)
            for target in TARGETS:
                gauge = self._scalars[names.DEMAND](view.service, model, view.pool, target)
                gauge.value += view.demand.get(target, 0.0)

    def set_server(self, view: ServerView) -> None:
        """Shows the server as it is."""
        for field in dataclasses.fields(view):
            gauge = self._scalars[f"pagelet_router_{field.name}"]()
            gauge.value = int(getattr(view, field.name))

    def render(self) -> bytes:
        """Prometheus' text format, with the process's own metrics last."""
        return render(self._families) + self._process.render()

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._scalars[f"pagelet_router_{name}"](*labels).value += by

    def _observe(self, name: str, model: str, value: float) -> None:
        self._histograms[f"pagelet_router_{name}"](model).observe(value)


def _histograms_of(metric: Metric) -> _Vector[Histogram]:
    bounds = metric.buckets
    assert bounds != "tokens"
    return _Vector(metric, lambda name, labels: Histogram(name, labels, list(bounds)))
