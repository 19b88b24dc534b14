"""Who acts, of several operators: the holder of a Lease, as in Kubernetes' own controllers.

kopf's peering would need objects of a kind of its own, and has frozen operators (nolar/kopf#734).
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pagelet.operator.kube.client import UNREACHABLE, ApiError, Client, Conflict, NotFound
from pagelet.operator.kube.resources import LEASES, Object

LEASE_NAME: Final = "pagelet-operator"
DURATION_SECONDS: Final = 15
_RENEW_SECONDS: Final = 2
_TRY_SECONDS: Final = 5
"""One slow answer of the API server leaves time for another try."""
_GIVE_UP_SECONDS: Final = 12
"""After the last renewal was asked for, the holder stops acting, before another may begin."""

log = logging.getLogger(__name__)


class LostLease(Exception):
    """Another operator may act from now on; this one must end."""


class Leader:
    """A candidate for a Lease."""

    def __init__(self, client: Client, namespace: str, identity: str) -> None:
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self.holds = False
        self._seen: tuple[Any, float] = (None, 0.0)
        """The other holder's last renewal, and when we saw it: clocks of machines differ."""

    async def lead(self, act: Callable[[], Awaitable[None]]) -> None:
        """Waits for the Lease, then runs `act` while it is held. Raises LostLease."""
        while True:
            asked_at = time.monotonic()
            if await self._try(_TRY_SECONDS):
                break
            await asyncio.sleep(_RENEW_SECONDS)
        self.holds = True
        log.info("%s acts from now on", self._identity)
        acting = asyncio.ensure_future(act())
        renewing = asyncio.ensure_future(self._renew(asked_at))
        try:
            done, _ = await asyncio.wait({acting, renewing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.holds = False
            for task in (acting, renewing):
                task.cancel()
            await asyncio.gather(acting, renewing, return_exceptions=True)

    async def release(self) -> None:
        """Lets another one begin at once."""
        try:
            lease = await self._client.get(LEASES, self._namespace, LEASE_NAME)
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(LEASES, lease)
        except (ApiError, *UNREACHABLE) as error:
            log.warning("cannot release the lease: %r", error)

    async def _renew(self, asked_at: float) -> None:
        """`asked_at` is when the Lease was asked for: the API server may have written it at once,
        and answered late. Raises LostLease."""
        while (left := asked_at + _GIVE_UP_SECONDS - time.monotonic()) > 0:
            await asyncio.sleep(min(_RENEW_SECONDS, left))
            now = time.monotonic()
            if await self._try(min(_TRY_SECONDS, asked_at + _GIVE_UP_SECONDS - now)):
                asked_at = now
        raise LostLease(f"the lease {self._namespace}/{LEASE_NAME} could not be renewed")

    async def _try(self, seconds: float) -> bool:
        """Takes or renews the Lease within so many seconds; whether it is ours."""
        try:
            async with asyncio.timeout(seconds):
                return await self._take()
        except Conflict:
            return False  # someone was faster
        except (ApiError, *UNREACHABLE) as error:
            log.warning("cannot take the lease: %r", error)
            return False

    async def _take(self) -> bool:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        ours = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": now.replace("+00:00", "Z"),
        }
        try:
            lease = await self._client.get(LEASES, self._namespace, LEASE_NAME)
        except NotFound:
            metadata = {"name": LEASE_NAME, "namespace": self._namespace}
            made = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": metadata,
                "spec": ours | {"acquireTime": ours["renewTime"], "leaseTransitions": 0},
            }
            await self._client.create(LEASES, self._namespace, made)
            return True
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") != self._identity:
            if not self._has_expired(spec):
                return False
            transitions = int(spec.get("leaseTransitions") or 0) + 1
            ours |= {"acquireTime": ours["renewTime"], "leaseTransitions": transitions}
        lease["spec"] = spec | ours
        await self._client.replace(LEASES, lease)
        return True

    def _has_expired(self, spec: Object) -> bool:
        if not spec.get("holderIdentity"):
            return True
        state = (spec["holderIdentity"], spec.get("renewTime"))
        if state != self._seen[0]:
            self._seen = (state, time.monotonic())
        duration = float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)
        return time.monotonic() - self._seen[1] > duration
