"""One replica: `pagelet serve` on a port of its own, in one pool."""

import re
import socket
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pagelet.local import probe
from pagelet.local.log_files import RotatingLog
from pagelet.local.probe import Load, Sampler
from pagelet.local.rollout import Phase, ReplicaView
from pagelet.local.server import Server
from pagelet.local.status import ReplicaStatus
from pagelet.local.wanted import PoolSpec
from pagelet.protocol.inference_service.commands import agent_arguments
from pagelet.protocol.inference_service.options import in_fields
from pagelet.protocol.openai.errors import ErrorResponse

HOST = "127.0.0.1"
_STAGE = re.compile(r"\[supervisor\] engine core 0: ([^=]+?)(?: \d+%)?$")
_TROUBLE = re.compile(r" ERROR \[supervisor\] (.+)$")
_KNOWN_SECONDS = 1.5
"""How long after it is ready the router surely sends requests, so that others may go."""


class Replica(Server):
    """A server of the OpenAI API that only the router is to call."""

    def __init__(
        self,
        name: str,
        spec: PoolSpec,
        holder: socket.socket,
        output: RotatingLog,
        *,
        share: float,
        gpus: Sequence[str],
        kv_events: tuple[str, str],
        api_key_file: str | None,
        chat_template: str | None,
        on_change: Callable[[], None],
    ) -> None:
        """`holder` holds its port, `kv_events` are the endpoints of events and of their replay,
        `chat_template` is a file.
        `share` is its part of the machine if it computes on the CPU, `gpus` if it does not."""
        self.pool = spec.name
        self._spec = spec
        self.fingerprint = spec.fingerprint
        self.share = share
        self.gpus = list(gpus)
        self.load = Load()
        self._holder = holder
        self._sampler = Sampler()
        events, replay = kv_events
        port = holder.getsockname()[1]
        arguments = agent_arguments(
            spec.service,
            spec.revision,
            host=HOST,
            port=port,
            chat_template=chat_template,
            kv_events_endpoint=events,
            kv_events_replay_endpoint=replay,
        )
        if api_key_file is not None:
            arguments += ["--api-key-file", api_key_file]
        super().__init__(
            name,
            [*arguments, *spec.limits(share)],
            port,
            output,
            environment=_environment(spec, gpus),
            startup_seconds=spec.service.spec.rollout.startup_seconds,
            drain_seconds=spec.service.spec.rollout.drain_seconds,
            on_change=on_change,
        )

    @property
    def url(self) -> str:
        """Where the router reaches it."""
        return f"http://{HOST}:{self.port}"

    async def look(self) -> None:
        """Takes a sample of its load."""
        answer = await probe.get(self.port, "/metrics")
        if answer is not None and answer[0] == 200:
            self.load = self._sampler.take(answer[1])

    def why_not_ready(self, body: str) -> str:
        """What its supervisor said of it last, or else what it answers."""
        return _last(_TROUBLE, self.last_lines) or _message(body)

    def explain(self, words: str) -> str:
        """With fields of the file in place of options of `pagelet serve`."""
        return in_fields(words, self._spec.service, self._spec.revision.name)

    def view(self, fingerprint: str) -> ReplicaView:
        """For decisions about it, where the file asks for replicas with that fingerprint."""
        is_current = self.fingerprint == fingerprint
        new = is_current and self.ready_seconds < _KNOWN_SECONDS
        return ReplicaView(
            id=self.name,
            is_current=is_current,
            phase=Phase.STARTING if self.phase is Phase.READY and new else self.phase,
            in_flight=self._current_load.in_flight,
        )

    def status(self, fingerprint: str) -> ReplicaStatus:
        """As it is shown."""
        return ReplicaStatus(
            id=self.name,
            phase=self.phase,
            pid=self.pid,
            port=self.port,
            restarts=self.restarts,
            reason=self.reason,
            is_current=self.fingerprint == fingerprint,
            stage=_last(_STAGE, self.last_lines) if self.phase is Phase.STARTING else "",
            load=self._current_load,
        )

    @property
    def _current_load(self) -> Load:
        """The last sample, unless what it was of is gone."""
        return self.load if self.phase in (Phase.READY, Phase.DRAINING) else Load()

    def release(self) -> None:
        """Gives its port back, once it has ended."""
        self._holder.close()


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """What it found last in a server's log; empty if nothing."""
    found = (pattern.search(line) for line in reversed(lines))
    return next((match[1] for match in found if match), "")


def _message(body: str) -> str:
    try:
        return msgspec.json.decode(body, type=ErrorResponse).error.message
    except msgspec.MsgspecError:
        return ""


def _environment(spec: PoolSpec, gpus: Sequence[str]) -> Mapping[str, str]:
    if not gpus:
        return spec.environment
    return {**spec.environment, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
