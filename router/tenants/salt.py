"""Cache salts: KV blocks are shared among requests of equal salt only.

A prefix cache tells by its speed what others have sent (CVE-2025-46570). So the salt is the
router's to choose: it follows from the tenant, and what a client sends as its own `cache_salt`
only divides the tenant's own cache further.
"""

import base64
import hmac
from pathlib import Path

from pagelet.router.tenants.tenant import Tenant


class SaltDeriver:
    """Derives salts. Routers that share `secret` derive the same ones, and without it, which is a
    secret of the deployment, nobody can tell a tenant's salt who may talk to a replica directly."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret

    @classmethod
    def from_file(cls, path: str | None) -> "SaltDeriver":
        """With the secret in a file, whose surrounding white space does not count. Raises
        `OSError`, and `ValueError` if there is none in it."""
        if path is None:
            return cls()
        secret = Path(path).read_bytes().strip()
        if not secret:
            raise ValueError(
                f"{path}: the secret for cache salts is empty; put 32 random bytes there"
            )
        return cls(secret)

    def derive(self, tenant: Tenant, client_salt: str | None) -> str | None:
        """The salt of a tenant's requests, `client_salt` mixed in if given. Where no keys are asked
        for there are no tenants to keep apart, and a client's salt is taken as it is."""
        if not tenant.name:
            return client_salt
        message = b"pagelet cache salt v1"
        for part in (tenant.name, client_salt):
            data = b"" if part is None else b"=" + part.encode("utf-8", "surrogatepass")
            # With its length before it, no part can be taken for the end of another.
            message += len(data).to_bytes(4, "little") + data
        digest = hmac.digest(self._secret, message, "sha256")
        return base64.b32encode(digest[:20]).decode().lower()
