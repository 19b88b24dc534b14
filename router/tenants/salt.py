"""Cache salts: KV blocks are shared among requests of equal salt only.

A prefix cache tells by its speed what others have sent (CVE-2025-46570). So the salt is the
router's to choose: it follows from the tenant, and what a client sends as its own `cache_salt`
only divides the tenant's own cache further.
"""

import base64
import hashlib
import hmac


class SaltDeriver:
    """Derives salts. Routers that share `secret` derive the same ones, and without it, which is a
    secret of the deployment, nobody can tell a tenant's salt who may talk to a replica directly."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret

    def derive(self, tenant: str, client_salt: str | None) -> str:
        """The salt of a tenant's requests, `client_salt` mixed in if given."""
        message = hashlib.sha256(b"pagelet cache salt v1")
        for part in (tenant, client_salt):
            data = b"" if part is None else b"=" + part.encode("utf-8", "surrogatepass")
            # With its length before it, no part can be taken for the end of another.
            message.update(len(data).to_bytes(4, "little") + data)
        digest = hmac.digest(self._secret, message.digest(), "sha256")
        return base64.b32encode(digest[:20]).decode().lower()
