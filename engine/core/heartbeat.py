"""The engine core's heartbeat: a small memory-mapped file that says what its loop is doing.

The core writes it once a loop iteration, which costs about a microsecond; the supervisor's
watchdog and the API process's health check read it without asking the core anything, so a hung
step cannot hide and a long prefill is not taken for a death. The file outlives the core, so a
restarted core writes on in the same place and readers keep their mapping.

A reader never sees half of a write: the writer makes the sequence number odd, writes, and makes it
even again (a seqlock, as in the Linux kernel).
"""

import enum
import mmap
import os
import struct
import time
from typing import Any

import msgspec

_SEQUENCE = struct.Struct("<Q")
_BODY = struct.Struct("<QBQddQQH150s")
_SIZE = _SEQUENCE.size + _BODY.size
_STAGE_BYTES = 150
_READ_TRIES = 50


class CoreState(enum.IntEnum):
    """Where an engine core is in its life."""

    STARTING = 0
    READY = 1
    STOPPING = 2


class Heartbeat(msgspec.Struct, frozen=True):
    """One reading. Times are `time.monotonic()` seconds, which on Linux all processes share."""

    pid: int
    state: CoreState
    step: int
    """Steps finished since the core started."""
    last_loop: float
    """When the busy loop last came round."""
    step_began: float
    """When the oldest step in flight began; 0.0 if there is none."""
    num_unfinished: int
    """Requests waiting or running."""
    kv_cache_tokens: int
    """Tokens that the KV cache holds; 0 until it is made."""
    stage: str
    """What the start-up is at, such as "loading weights 45%"."""

    @property
    def has_work(self) -> bool:
        """Whether the step counter ought to move."""
        return self.num_unfinished > 0 or self.step_began > 0.0

    def step_age(self, now: float) -> float:
        """Seconds since the oldest step in flight began, or else the loop last came round; 0.0
        without work."""
        return max(0.0, now - (self.step_began or self.last_loop)) if self.has_work else 0.0


class HeartbeatWriter:
    """The core's side. Makes the file if it is not there."""

    def __init__(self, path: str) -> None:
        self._map = _open(path, writable=True)
        (sequence,) = _SEQUENCE.unpack_from(self._map)
        self._sequence = sequence + sequence % 2  # odd: the last writer was killed while writing
        self._pid = os.getpid()
        self._state = CoreState.STARTING
        self._kv_cache_tokens = 0
        self._stage = b"starting"
        self.beat(step=0, step_began=0.0, num_unfinished=0)

    def stage(self, text: str) -> None:
        """Says what the start-up is at; cut to 150 bytes."""
        self._stage = text.encode()[:_STAGE_BYTES]
        self.beat(step=0, step_began=0.0, num_unfinished=0)

    def ready(self, kv_cache_tokens: int) -> None:
        """The model is loaded and the KV cache is made."""
        self._state = CoreState.READY
        self._kv_cache_tokens = kv_cache_tokens
        self.stage("ready")

    def stopping(self) -> None:
        """The loop has ended on purpose: nothing after this is a hang."""
        self._state = CoreState.STOPPING
        self.stage("stopping")

    def beat(self, *, step: int, step_began: float, num_unfinished: int) -> None:
        """Call once a loop iteration, and at least once a second while idle."""
        _SEQUENCE.pack_into(self._map, 0, self._sequence + 1)
        _BODY.pack_into(
            self._map,
            _SEQUENCE.size,
            self._pid,
            self._state,
            step,
            time.monotonic(),
            step_began,
            num_unfinished,
            self._kv_cache_tokens,
            len(self._stage),
            self._stage,
        )
        self._sequence += 2
        _SEQUENCE.pack_into(self._map, 0, self._sequence)

    def close(self) -> None:
        """Unmaps the file; it stays, with the last beat in it."""
        self._map.close()


class HeartbeatReader:
    """Reads beats, from any process. Makes the file if it is not there yet."""

    def __init__(self, path: str) -> None:
        self._map = _open(path, writable=False)
        self._last: Heartbeat | None = None

    def read(self) -> Heartbeat | None:
        """The last beat; None before the first.

        A writer that was killed in the middle of a write leaves an odd sequence number behind:
        then it is the last beat that this reader saw whole.
        """
        for _ in range(_READ_TRIES):
            (before,) = _SEQUENCE.unpack_from(self._map)
            body = _BODY.unpack_from(self._map, _SEQUENCE.size)
            (after,) = _SEQUENCE.unpack_from(self._map)
            if before == after and before % 2 == 0:
                if before > 0:
                    self._last = _decode(body)
                break
            time.sleep(0)  # let the writer finish
        return self._last

    def close(self) -> None:
        """Unmaps the file."""
        self._map.close()


def _decode(body: tuple[Any, ...]) -> Heartbeat:
    pid, state, step, last_loop, step_began, num_unfinished, kv_cache_tokens, length, stage = body
    return Heartbeat(
        pid=pid,
        state=CoreState(state),
        step=step,
        last_loop=last_loop,
        step_began=step_began,
        num_unfinished=num_unfinished,
        kv_cache_tokens=kv_cache_tokens,
        stage=stage[:length].decode(errors="ignore"),
    )


def _open(path: str, *, writable: bool) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size < _SIZE:
            os.ftruncate(fd, _SIZE)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(fd, _SIZE, access=access)
    finally:
        os.close(fd)
