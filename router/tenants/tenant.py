"""Who sends a request, and what they may."""

import dataclasses

from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.router import TenantLimits


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """One customer, team or application: limits, fairness, cache and metrics are by tenant,
    whichever of its keys a request came with."""

    name: str
    limits: TenantLimits = dataclasses.field(default_factory=TenantLimits)
    models: frozenset[str] | None = None
    """Names that it may ask for; None is all."""
    admin: bool = False
    """Whether it may see other tenants' requests explained."""

    def may_use(self, *names: str) -> bool:
        """Whether one of `names`, which mean one model, is allowed."""
        return self.models is None or not self.models.isdisjoint(names)

    def check_model(self, *names: str) -> None:
        """Raises 403, about the first of `names`, if none of them is allowed."""
        if self.models is None or self.may_use(*names):
            return
        listed = ", ".join(repr(name) for name in sorted(self.models)) or "none"
        raise ApiError(
            403,
            f"This API key may not use the model {names[0][:200]!r}; it may use: {listed}.",
            param="model",
            code="model_not_allowed",
            reason="forbidden",
        )


ANONYMOUS = Tenant(name="")
"""Everyone, where no keys are asked for."""
