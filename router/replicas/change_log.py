"""What the log tells of replicas: each change once."""

import logging

_log = logging.getLogger(__name__)


class ChangeLog:
    """Shared by all that look after the same replicas: after a change of its configuration a router
    follows them twice, until the last request that began before it has ended."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def tell(
        self, replica_id: str, what: str, level: int = logging.INFO, *, why: str | None = None
    ) -> None:
        """What is true of a replica from now on, such as "is ready"."""
        if self._told.get(replica_id) != what:
            self._told[replica_id] = what
            told = what if why is None else f"{what}: {why}"
            _log.log(level, "replica %s %s", replica_id, told)

    def tell_gone(self, replica_id: str) -> None:
        """Nothing more will be told of it, unless it comes again."""
        if self._told.pop(replica_id, None) is not None:
            _log.info("replica %s is gone", replica_id)
