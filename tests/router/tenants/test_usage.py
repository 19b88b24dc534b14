"""Who sees what of what was used."""

import pytest

from pagelet.router.metrics import RouterMetrics
from pagelet.router.record import RequestRecord
from pagelet.router.routing.types import Decision
from pagelet.router.tenants.tenant import ANONYMOUS, Tenant
from pagelet.router.tenants.usage import TenantUsage, usage_of

ODD = 'team "a"\\\n{b="c"}\u2028 1'


def finished(tenant: str, model: str = "m", status: int = 200) -> RequestRecord:
    record = RequestRecord(
        request_id="r",
        trace_id="t",
        method="POST",
        path="/v1/completions",
        tenant=tenant,
        model=model,
        status=status,
        prompt_tokens=100,
        cached_tokens=60,
        completion_tokens=7,
        replica_seconds=0.5,
        ttft_seconds=0.1,
    )
    record.decided(Decision("replica", "why", 64, 0.2))
    return record


@pytest.fixture
def text() -> bytes:
    metrics = RouterMetrics()
    for tenant in ("acme", "acme", ODD, ""):
        metrics.on_finished(finished(tenant))
    metrics.on_finished(finished("acme", "other-model", 503))
    return metrics.render()


def test_a_tenant_sees_its_own_use(text: bytes) -> None:
    assert usage_of(text, Tenant("acme")).data == [
        TenantUsage("acme", "m", 2, 200, 120, 14, 1.0),
        TenantUsage("acme", "other-model", 1, 100, 60, 7, 0.5),
    ]
    assert usage_of(text, Tenant(ODD)).data == [TenantUsage(ODD, "m", 1, 100, 60, 7, 0.5)]
    assert usage_of(text, ANONYMOUS).data == [TenantUsage("anonymous", "m", 1, 100, 60, 7, 0.5)]
    assert usage_of(text, Tenant("unseen")).data == []


def test_an_admin_sees_everyone(text: bytes) -> None:
    seen = usage_of(text, Tenant("boss", admin=True)).data
    assert [(row.tenant, row.requests) for row in seen] == [
        *(("acme", 2), ("acme", 1), ("anonymous", 1), (ODD, 1)),
    ]


def test_tenants_that_are_counted_together_are_shown_to_admins_alone() -> None:
    metrics = RouterMetrics()
    for number in range(150):
        metrics.on_finished(finished(f"t{number}"))
    text = metrics.render()
    assert usage_of(text, Tenant("other")).data == []
    together = [
        row for row in usage_of(text, Tenant("boss", admin=True)).data if row.tenant == "other"
    ]
    assert [row.requests for row in together] == [50]
