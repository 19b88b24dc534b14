"""Which samples Pagelet's processes export, and which a query asks for."""

import functools
import re
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from pagelet.operator.metrics import Metrics as OperatorMetrics
from pagelet.protocol import metrics as agent
from pagelet.protocol import router_metrics as router
from pagelet.protocol.metrics import Metric

_METRIC = re.compile(r"(?<![\w:$])(?:vllm:|pagelet_|process_)\w+")


@functools.cache
def exported_samples() -> frozenset[str]:
    """Names of all samples of replicas, routers and operators."""
    described = (
        *(agent.ENGINE_METRICS + agent.ALIASES + agent.SERVER_METRICS),
        *(router.REQUEST_METRICS + router.POOL_METRICS + router.SERVER_METRICS),
    )
    names = {name for metric in described for name in _samples(metric)}
    for family in text_string_to_metric_families(OperatorMetrics().render()):
        names |= {sample.name for sample in family.samples}
    return frozenset(names | {"process_cpu_seconds_total", "process_resident_memory_bytes"})


def _samples(metric: Metric) -> Iterator[str]:
    if metric.kind == "histogram":
        yield from (f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))
    else:
        yield metric.name


def names_in(promql: str) -> set[str]:
    """Names of the metrics in a query."""
    return set(_METRIC.findall(promql))
