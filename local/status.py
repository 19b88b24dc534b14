"""What runs, as the supervisor tells it to the other commands and to its own screen."""

import msgspec

from pagelet.local.probe import Load
from pagelet.local.rollout import Phase

_TROUBLED = (Phase.FAILED, Phase.BACKING_OFF, Phase.STARTING)


class ServerStatus(msgspec.Struct, kw_only=True):
    """One process: the router or a replica."""

    id: str
    phase: Phase
    pid: int | None
    """None while it is down."""
    port: int
    restarts: int
    reason: str = ""
    """Why it is not ready, if it is not starting for the first time."""


class ReplicaStatus(ServerStatus, kw_only=True):
    """One replica."""

    is_current: bool
    """Whether it is as the file wants it; others are being replaced."""
    stage: str = ""
    """What its start is at, such as loading weights, in its own words."""
    load: Load = Load()


class PoolStatus(msgspec.Struct, kw_only=True):
    """A service, or its canary."""

    name: str
    model: str
    """The name that requests use."""
    wanted: int
    """How many replicas there shall be."""
    replicas: list[ReplicaStatus]

    @property
    def ready(self) -> int:
        """Replicas that serve."""
        return sum(replica.phase is Phase.READY for replica in self.replicas)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do but to wait for those that drain."""
        staying = [r for r in self.replicas if r.phase is not Phase.DRAINING]
        return len(staying) == self.wanted and all(
            r.is_current and r.phase is Phase.READY for r in staying
        )


class Status(msgspec.Struct, kw_only=True):
    """All that one supervisor runs."""

    file: str
    url: str
    """Of the router, without a path."""
    problems: list[str]
    """Of the file as it is now; what runs is as it was before them."""
    warnings: list[str] = []
    """What is more than the machine has."""
    router: ServerStatus
    pools: list[PoolStatus]
    is_giving_up: bool = False
    """Whether it ends because nothing that the file asks for can work."""

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing can work as the file has it, and no restart would help."""
        if self.router.phase is Phase.FAILED:
            return True
        return bool(self.pools) and all(
            pool.replicas and all(r.phase is Phase.FAILED for r in pool.replicas)
            for pool in self.pools
        )

    @property
    def is_settled(self) -> bool:
        """Whether everything is as the file wants it."""
        return self.router.phase is Phase.READY and all(pool.is_settled for pool in self.pools)

    @property
    def failures(self) -> list[str]:
        """What is not ready, or not again yet, and why."""
        servers: list[ServerStatus] = [self.router]
        servers += [replica for pool in self.pools for replica in pool.replicas]
        return [
            f"{server.id}: {server.reason}"
            for server in servers
            if server.reason and server.phase in _TROUBLED
        ]
