"""The tenants of a router and their keys, read again whenever their file changes."""

import asyncio
import dataclasses
import hmac
import logging
import time
from pathlib import Path

from pagelet.process.watched import WatchedPath
from pagelet.protocol.api_keys import bearer_key, key_digest
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.router import TenantLimits
from pagelet.router.tenants.key_file import KeyFileError, read_key_files
from pagelet.router.tenants.tenant import ANONYMOUS, Tenant

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    tenant: Tenant
    expires: float | None
    """Unix time."""


class TenantDirectory:
    """Who may use the router. Without a path there is one tenant, and no key is asked for."""

    def __init__(self, path: Path | None, default_limits: TenantLimits) -> None:
        """Raises `KeyFileError` if the file cannot be used at start; later, what was read last
        stays in force."""
        self._default_limits = default_limits
        self._anonymous = dataclasses.replace(ANONYMOUS, limits=default_limits)
        self._keys: dict[bytes, _Key] = {}
        self.num_tenants = 0 if path else 1
        self.broken = False
        """Whether the file as it is now could not be used."""
        self._watched = None if path is None else WatchedPath(path, check_every=0)
        if self._watched is not None and self._watched.changed():
            self._read(self._watched)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return self._watched is not None

    def identify(self, authorization: str | None, api_key: str | None = None) -> Tenant:
        """The tenant of a key in `Authorization: Bearer KEY`, or else in `x-api-key`, where clients
        of Anthropic's API put it. Raises `ApiError` 401."""
        if self._watched is None:
            return self._anonymous
        given = bearer_key(authorization) or api_key
        if given is None:
            raise _unauthorized("You didn't provide an API key: send 'Authorization: Bearer KEY'.")
        digest = key_digest(given)
        # Found by the digest, of which no client can choose a part; then compared in constant time.
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise _unauthorized("Incorrect API key provided.")
        if key.expires is not None and key.expires <= time.time():
            raise _unauthorized("This API key has expired.")
        return key.tenant

    def refresh(self) -> None:
        """Reads the file if it changed."""
        if self._watched is None or not self._watched.changed():
            return
        try:
            self._read(self._watched)
        except KeyFileError as error:
            self.broken = True
            _log.error("the new file of tenants is not used, the last stays in force: %s", error)

    async def keep_fresh(self, interval: float = 1.0) -> None:
        """Refreshes for ever, off the event loop: a long file takes a while to read."""
        while True:
            await asyncio.sleep(interval)
            try:
                await asyncio.to_thread(self.refresh)
            except Exception:  # else no key could be taken back any more
                self.broken = True
                _log.exception("the file of tenants cannot be read, the last stays in force")

    def _read(self, watched: WatchedPath) -> None:
        try:
            files = watched.files()
        except OSError as error:
            raise KeyFileError(str(error)) from error
        entries = read_key_files(files, folder=watched.path.is_dir())
        keys = {}
        for entry in entries:
            tenant = Tenant(
                name=entry.name,
                limits=entry.effective_limits(self._default_limits),
                models=None if entry.models is None else frozenset(entry.models),
                admin=entry.admin,
            )
            for key in entry.keys:
                expires = None if key.expires is None else key.expires.timestamp()
                keys[key.digest] = _Key(key.digest, tenant, expires)
        # The keys last: by then, seen from another thread, all else is theirs.
        self.num_tenants, self.broken, self._keys = len(entries), False, keys
        if keys:
            _log.info("read %d tenants with %d keys", len(entries), len(keys))
        else:
            _log.warning("the file of tenants has no keys: it lets no one in")


def _unauthorized(message: str) -> ApiError:
    return ApiError(
        401,
        message,
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
        reason="auth",
    )
