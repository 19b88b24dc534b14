"""How the operator runs: one typed object, filled from the flags of `pagelet operator`."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from pagelet.operator.planning.context import Context


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """Of one installation."""

    context: Context
    namespaces: tuple[str, ...] = ()
    """Which to serve; none are all."""
    lease_namespace: str
    """Where the Lease is by which replicas of the operator agree on who acts."""
    identity: str
    """This process's name in the Lease: its pod's."""
    relist_seconds: int = 240
    """After so long everything is listed again, whatever the watches said."""
    replica_seconds: float = 10.0
    """Between two questions to each replica."""
    autoscale_seconds: float = 3.0
    """Between two looks at the demand of services that the operator scales."""
    accelerator_budget: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By resource name, how many all services together may have; of others any number."""
    workers: int = 8
    """Services reconciled at once."""
    host: str = "0.0.0.0"
    port: int = 8080
    """Of `/healthz` and `/metrics`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
