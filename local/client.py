"""What the commands beside `up` do: ask the supervisor of a state directory, and read its logs."""

import time
from collections.abc import Callable

from pagelet.local import control
from pagelet.local.control import Call, ControlError, NotUnderstood
from pagelet.local.rollout import Phase
from pagelet.local.state_dir import Owner, StateDir
from pagelet.local.status import ReplicaStatus, ServerStatus, Status

_POLL_SECONDS = 0.2
_PATIENCE = 3
"""Restarts of a server that are waited for."""


class NothingRuns(Exception):
    """There is no supervisor in this state directory."""

    def __init__(self, state: StateDir) -> None:
        start = state.command("up -f FILE")
        super().__init__(f"nothing runs (looked in {state.path}); start with: {start}")


class GivesUp(ControlError):
    """Nothing that the file asks for can work, so the supervisor ends by itself."""


def owner_of(state: StateDir) -> Owner:
    """The supervisor that runs. Raises `NothingRuns`."""
    owner = state.owner()
    if owner is None:
        raise NothingRuns(state)
    return owner


def status(state: StateDir) -> Status:
    """How things are. Raises `NothingRuns` or `ControlError`."""
    return _call(state, Call(command="status"))


def apply(state: StateDir) -> Status:
    """Has the file read now. Raises `NothingRuns`, or `ControlError` with what is wrong in it."""
    return _call(state, Call(command="apply"))


def scale(state: StateDir, pool: str, replicas: int) -> Status:
    """Sets a number of replicas by hand. Raises `NothingRuns` or `ControlError`."""
    return _call(state, Call(command="scale", pool=pool, replicas=replicas))


def stop(state: StateDir, *, at_once: bool) -> None:
    """Ends everything, and returns when it has ended. Raises `NothingRuns` or `ControlError`."""
    _call(state, Call(command="stop", at_once=at_once))
    wait_ended(state)


def wait_ended(state: StateDir) -> None:
    """Until there is no supervisor any more."""
    while state.is_held():
        time.sleep(_POLL_SECONDS)


def wait_settled(state: StateDir, say: Callable[[str], None], pool: str | None = None) -> Status:
    """Waits until all, or one pool, is as it is wanted, and tells each step.

    Raises `ControlError` if something does not get up, or if the supervisor ends; `GivesUp` if it
    ends because nothing does.
    """
    phases: dict[str, Phase] = {}
    while True:
        now = status(state)
        watched = [found for found in now.pools if pool in (None, found.name)]
        for replica in [replica for found in watched for replica in found.replicas]:
            if phases.get(replica.id) != replica.phase:
                phases[replica.id] = replica.phase
                why = f" ({replica.reason})" if replica.phase is Phase.BACKING_OFF else ""
                say(f"{replica.id}: {replica.phase}{why}")
        if now.router.phase is Phase.READY and all(found.is_settled for found in watched):
            return now
        servers = [now.router, *(replica for found in watched for replica in found.replicas)]
        if now.is_giving_up:
            raise GivesUp("\n".join(now.failures))
        if hopeless := [s for s in servers if _is_hopeless(s)]:
            raise ControlError("\n".join(f"{server.id}: {server.reason}" for server in hopeless))
        time.sleep(_POLL_SECONDS)


def draining(state: StateDir, pool: str) -> list[ReplicaStatus]:
    """The replicas of a pool that finish their last requests. Raises `NothingRuns` or
    `ControlError`."""
    pools = [found for found in status(state).pools if found.name == pool]
    return [r for found in pools for r in found.replicas if r.phase is Phase.DRAINING]


def _call(state: StateDir, call: Call) -> Status:
    try:
        return control.call(owner_of(state).control, call, Status)
    except NotUnderstood as error:
        down = state.command("down")
        raise ControlError(f"{error}; end it with that version's `{down}`") from None


def _is_hopeless(server: ServerStatus) -> bool:
    """Whether it keeps failing, or says that it cannot work."""
    crashes = server.phase is Phase.BACKING_OFF and server.restarts >= _PATIENCE
    return server.phase is Phase.FAILED or crashes
