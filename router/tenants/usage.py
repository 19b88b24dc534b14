"""What tenants have used: `GET /v1/usage`.

It is read from the metrics of all workers that run, so the two always tell the same.
"""

import re
from typing import Final

import msgspec

from pagelet.router.metrics import ANONYMOUS, OTHER
from pagelet.router.tenants.tenant import Tenant

_PREFIX: Final = "pagelet_router_"
_FIELDS: Final = {
    f"{_PREFIX}requests_total": "requests",
    f"{_PREFIX}prompt_tokens_total": "prompt_tokens",
    f"{_PREFIX}cached_tokens_total": "cached_tokens",
    f"{_PREFIX}generated_tokens_total": "generated_tokens",
    f"{_PREFIX}replica_seconds_total": "replica_seconds",
}
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


class TenantUsage(msgspec.Struct):
    """Of one model by one tenant. `replica_seconds` times the GPUs of a replica are GPU seconds."""

    tenant: str
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those found in a prefix cache."""
    generated_tokens: int = 0
    replica_seconds: float = 0.0


class UsageList(msgspec.Struct):
    """The answer, by tenant and model."""

    data: list[TenantUsage]
    object: str = "list"


def usage_of(metrics: bytes, tenant: Tenant) -> UsageList:
    """What `tenant` may see, by the router's metrics: its own use, or of an admin everyone's. The
    tenants that metrics count together are one, "other"."""
    used = _read(metrics.decode())
    if not tenant.admin:
        name = tenant.name or ANONYMOUS
        used = [] if name == OTHER else [row for row in used if row.tenant == name]
    return UsageList(sorted(used, key=lambda row: (row.tenant, row.model)))


def _read(text: str) -> list[TenantUsage]:
    rows: dict[tuple[str, str], TenantUsage] = {}
    for line in text.split("\n"):
        name, brace, rest = line.partition("{")
        if not brace or name not in _FIELDS:
            continue
        labels = {key: _ESCAPED.sub(_unescape, value) for key, value in _LABEL.findall(rest)}
        key = labels["tenant"], labels["model"]
        row = rows.setdefault(key, TenantUsage(*key))
        field, value = _FIELDS[name], float(rest.rpartition(" ")[2])
        kind = type(getattr(row, field))
        setattr(row, field, getattr(row, field) + kind(value))
    return list(rows.values())


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
