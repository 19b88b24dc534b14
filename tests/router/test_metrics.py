import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagelet.protocol import router_metrics as names
from pagelet.protocol.autoscaling.demand import TARGETS
from pagelet.protocol.exposition import Family, Histogram, Scalar, render
from pagelet.router.merged_metrics import merge
from pagelet.router.metrics import LabelCap, PoolView, RouterMetrics, ServerView
from pagelet.router.record import RequestRecord
from pagelet.router.routing.types import Candidate, Decision


def samples(text):
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if line[:1] != "#")
    return {name: float(value) for name, _, value in lines}


def record(**fields):
    fields = {"request_id": "r", "trace_id": "t", "method": "POST", "path": "/p"} | fields
    return RequestRecord(**fields)


def decided(record, predicted=0, outcome="completed"):
    candidate = Candidate("a", predicted, 0.1, 0.05, 0.2, 1.0, 0.5)
    record.decided(Decision("a", "why", predicted, 0.2, [candidate])).outcome = outcome
    return record


def test_what_scalers_need_is_there_from_the_start_with_no_replica():
    metrics = RouterMetrics()
    metrics.set_pools([PoolView("m", "p", service="s")])
    found = samples(metrics.render())
    for metric in names.POOL_METRICS:
        if metric.labels == ("model", "pool"):
            assert found[f'{metric.name}{{model="m",pool="p"}}'] == 0
    for state in names.REPLICA_STATES:
        labels = f'{{model="m",pool="p",state="{state}"}}'
        assert found[f"pagelet_router_replicas{labels}"] == 0
    for target in TARGETS:
        labels = f'{{service="s",model="m",pool="p",target="{target}"}}'
        assert found[f"{names.DEMAND}{labels}"] == 0
    for reason in names.REJECTIONS:
        assert found[f'pagelet_router_rejected_requests_total{{reason="{reason}"}}'] == 0
    for metric in names.SERVER_METRICS:
        assert found[metric.name] == 0
    assert "process_cpu_seconds_total" in found


def test_every_family_is_described_once_and_a_name_has_one_kind():
    text = RouterMetrics().render().decode().splitlines()
    described = [line.split()[2] for line in text if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    every = (*names.REQUEST_METRICS, *names.POOL_METRICS, *names.SERVER_METRICS)
    assert {metric.name for metric in every} <= set(described)
    assert all((metric.kind == "counter") == metric.name.endswith("_total") for metric in every)
    assert {metric.name for metric in every} >= names.SAME_IN_ALL_WORKERS


def test_prometheus_reads_the_text_of_one_worker_and_of_several():
    metrics = RouterMetrics()
    metrics.add_model('odd "name"\\\n\u2028\x85')
    metrics.set_pools([PoolView("m", "p")])
    text = metrics.render()
    read = [list(text_string_to_metric_families(t.decode())) for t in (text, merge([text, text]))]
    one, several = ({family.name: family.type for family in families} for families in read)
    assert one == several
    assert one["pagelet_router_waiting_requests"] == "gauge"
    assert one["pagelet_router_retries"] == "counter"


def test_a_finished_request_is_counted():
    metrics = RouterMetrics()
    done = decided(decided(record(model="m", tenant="acme"), 10, "broken"), predicted=64)
    done.status, done.retries, done.resumes = 200, 1, 0
    done.prompt_tokens, done.cached_tokens, done.completion_tokens = 100, 48, 7
    done.waited_seconds, done.overhead_seconds, done.ttft_seconds, done.seconds = 0.5, 0.002, 1, 3
    metrics.on_finished(done)
    found = samples(metrics.render())
    tenant, model = '{model="m",tenant="acme"}', '{model="m"}'
    prefix = "pagelet_router_"
    assert found[f'{prefix}requests_total{{model="m",tenant="acme",code="200"}}'] == 1
    for name, value in (("prompt", 100), ("cached", 48), ("generated", 7)):
        assert found[f"{prefix}{name}_tokens_total{tenant}"] == value
    for name, value in (
        ("retries_total", 1),
        ("failovers_total", 1),
        ("resumes_total", 0),
        ("predicted_hit_tokens_total", 64),
        ("actual_hit_tokens_total", 48),
        ("hit_error_tokens_sum", 16),
        ("queue_wait_seconds_sum", 0.5),
        ("overhead_seconds_sum", 0.002),
        ("time_to_first_token_seconds_sum", 1),
        ("request_duration_seconds_sum", 3),
    ):
        assert found[f"{prefix}{name}{model}"] == value


def test_a_request_that_got_no_answer_counts_no_tokens():
    metrics = RouterMetrics()
    metrics.on_finished(record(model="m", status=503, prompt_tokens=50, seconds=1.0))
    metrics.on_rejected("no_replica")
    found = samples(metrics.render())
    requests = 'pagelet_router_requests_total{model="m",tenant="anonymous",code="503"}'
    assert found[requests] == 1
    assert found['pagelet_router_rejected_requests_total{reason="no_replica"}'] == 1
    assert not any("tokens_total" in name for name in found)
    assert 'pagelet_router_time_to_first_token_seconds_count{model="m"}' not in found


def test_a_resumed_stream_says_nothing_about_predictions():
    metrics = RouterMetrics()
    done = decided(record(model="m", status=200, resumes=1, cached_tokens=500, ttft_seconds=1.0))
    metrics.on_finished(done)
    found = samples(metrics.render())
    assert found['pagelet_router_resumes_total{model="m"}'] == 1
    assert not any("actual_hit" in name for name in found)


def test_label_values_are_bounded():
    cap = LabelCap(2)
    assert [cap(value) for value in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]
    metrics = RouterMetrics()
    for number in range(1000):
        metrics.on_finished(record(model=f"m{number}", tenant=f"t{number}", status=200))
    found = samples(metrics.render())
    requests = [name for name in found if name.startswith("pagelet_router_requests_total")]
    assert len(requests) == 101
    assert found['pagelet_router_requests_total{model="other",tenant="other",code="200"}'] == 900


def test_adapters_leave_models_their_places():
    metrics = RouterMetrics()
    for number in range(1000):
        metrics.on_finished(record(model=f"a{number}", adapter_of="m", status=200))
    metrics.on_finished(record(model="m", status=200))
    metrics.set_pools([PoolView("m", "p", waiting_requests=3)])
    found = samples(metrics.render())
    requests = 'pagelet_router_requests_total{{model="{}",tenant="anonymous",code="200"}}'
    assert found[requests.format("a0")] == 1
    assert found[requests.format("other")] == 900
    assert found[requests.format("m")] == 1
    assert found['pagelet_router_waiting_requests{model="m",pool="p"}'] == 3


def test_pools_of_models_beyond_the_cap_are_shown_as_their_sum():
    """Whatever is added up over models, as dashboards do, is right with any number of them."""
    metrics = RouterMetrics()
    views = [
        PoolView(
            f"m{number}",
            "p",
            waiting_requests=number,
            backlog_seconds=0.5,
            kv_event_gaps=2,
            replicas={"ready": 1, "hung": 2},
            service="s",
            demand={"kv": 0.25},
        )
        for number in range(300)
    ]
    for _ in range(2):  # one scrape adds nothing to the other
        metrics.set_pools(views)
        found = samples(metrics.render())
        for view in (views[0], views[99]):
            labels = f'{{model="{view.model}",pool="p"}}'
            assert found[f"pagelet_router_waiting_requests{labels}"] == view.waiting_requests
        other = '{model="other",pool="p"}'
        assert found[f"pagelet_router_waiting_requests{other}"] == sum(range(100, 300))
        assert found[f"pagelet_router_backlog_seconds{other}"] == 100
        assert found[f"pagelet_router_kv_event_gaps_total{other}"] == 400
        for state, count in (("ready", 200), ("hung", 400), ("draining", 0)):
            labels = f'{{model="other",pool="p",state="{state}"}}'
            assert found[f"pagelet_router_replicas{labels}"] == count
        labels = '{service="s",model="other",pool="p",target="kv"}'
        assert found[f"{names.DEMAND}{labels}"] == 50


def test_pools_that_are_gone_are_not_shown():
    metrics = RouterMetrics()
    metrics.set_pools([PoolView("m", "old", replicas={"ready": 2})])
    metrics.set_pools([PoolView("m", "new", waiting_requests=3, backlog_seconds=1.5)])
    found = samples(metrics.render())
    assert not any('pool="old"' in name for name in found)
    assert found['pagelet_router_waiting_requests{model="m",pool="new"}'] == 3
    assert found['pagelet_router_backlog_seconds{model="m",pool="new"}'] == 1.5


def exposition(**values):
    families = []
    for name, value in values.items():
        family = Family(name, "gauge", f"Help of {name}.")
        series = Scalar(name, [("label", "a b")])
        series.value = value
        family.series.append(series)
        families.append(family)
    return render(families)


def test_workers_are_shown_as_one_server():
    one = exposition(pagelet_router_waiting_requests=2, pagelet_router_index_blocks=10, only_one=1)
    two = exposition(pagelet_router_waiting_requests=3, pagelet_router_index_blocks=7, only_two=2)
    merged = merge([one, two])
    assert samples(merged) == {
        'pagelet_router_waiting_requests{label="a b"}': 5,
        'pagelet_router_index_blocks{label="a b"}': 10,
        'only_one{label="a b"}': 1,
        'only_two{label="a b"}': 2,
    }
    assert merged.decode().count("# TYPE pagelet_router_waiting_requests gauge") == 1
    assert samples(merge([one])) == samples(one)


def test_merged_histograms_are_sums():
    def text(*values):
        family = Family("h", "histogram", "Help.")
        histogram = Histogram("h", [], [1.0, 2.0])
        for value in values:
            histogram.observe(value)
        family.series.append(histogram)
        return render([family])

    assert samples(merge([text(0.5, 5), text(1.5)])) == samples(text(0.5, 5, 1.5))


def test_two_whole_expositions_merge():
    metrics = RouterMetrics()
    metrics.set_server(ServerView(draining=True, open_requests=3, tenants=2))
    text = metrics.render()
    merged = samples(merge([text, text]))
    assert merged.keys() == samples(text).keys()
    assert merged["pagelet_router_draining"] == 1
    assert merged["pagelet_router_open_requests"] == 6
    assert merged["pagelet_router_tenants"] == 2
    start = "process_start_time_seconds"
    assert merged[start] == pytest.approx(samples(text)[start])
