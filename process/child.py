"""Child processes of a replica: how one is started, and how the two ends stay in touch.

Parent and child share a socket pair. The parent sends its pid and the child's configuration; the
child sends a report when it serves or when it cannot work. The end of the stream tells each side
that the other one is gone, on top of the parent-death signal.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from pagelet.process.frames import FrameReader, encode_frame, recv_frame, send_frame
from pagelet.process.proc import kill_group, set_parent_death_signal
from pagelet.protocol.exit_codes import EXIT_CONFIGURATION

_BEAT_SECONDS = 2.0

T = TypeVar("T")


class ChildReport(msgspec.Struct, array_like=True):
    """What a child tells its parent."""

    kind: Literal["serving", "failed", "alive"]
    text: str = ""


class ChildProcess(subprocess.Popen[bytes]):
    """A Python module run as a process, in a process group of its own.

    The group keeps the terminal's Ctrl-C away from it and lets its own children be killed with
    it. Start it from a thread that lives as long as the child shall (see `pagelet.process.proc`).
    """

    def __init__(
        self,
        arguments: Sequence[str],
        configuration: Any,
        *,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts `python ARGUMENTS --config-fd N`; `configuration` is msgpack-encodable.

        `environment` is added to this process's own. Raises OSError.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as if_it_fails, theirs:
            self._socket = if_it_fails.enter_context(ours)
            fd = theirs.fileno()
            super().__init__(
                # -P: the folder that the user happens to be in must not shadow any import.
                [sys.executable, "-P", *arguments, "--config-fd", str(fd)],
                stdin=subprocess.DEVNULL,
                env=None if environment is None else {**os.environ, **environment},
                pass_fds=[fd, *pass_fds],
                process_group=0,
            )
            if_it_fails.pop_all()
        self._reader = FrameReader(msgspec.msgpack.Decoder(ChildReport))
        self._serving: str | None = None
        self._failure: str | None = None
        self._has_beaten = False
        self._beats = False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: poll() tells
            send_frame(self._socket, os.getpid())
            send_frame(self._socket, configuration)
        self._socket.setblocking(False)

    @property
    def serving(self) -> str | None:
        """What the child said when it reported that it serves, perhaps ""; None before that."""
        self._receive()
        return self._serving

    @property
    def failure(self) -> str | None:
        """The child's own words about why it cannot work, if it said so."""
        self._receive()
        return self._failure

    @property
    def beats(self) -> bool:
        """Whether it reports its life: not all do, and none does before it serves."""
        self._receive()
        return self._beats

    def has_beaten(self) -> bool:
        """Whether it has reported its life since this was asked before."""
        self._receive()
        heard, self._has_beaten = self._has_beaten, False
        return heard

    def kill_group(self) -> None:
        """Ends the child and its own children at once. Does not reap."""
        if self.returncode is None:
            kill_group(self.pid)

    def close(self) -> None:
        """Lets go of the child: it ends, if it has not yet."""
        self._socket.close()

    def _receive(self) -> None:
        try:
            while data := self._socket.recv(4096):
                for report in self._reader.feed(data):
                    if report.kind == "serving":
                        self._serving = report.text
                    elif report.kind == "failed":
                        self._failure = report.text
                    else:
                        self._beats = self._has_beaten = True
        except OSError:
            pass  # nothing more for now, or closed


class ParentLink:
    """The child's end: `accept` first of all, in the main thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    def accept(cls, config_fd: int, type_: type[T]) -> tuple[T, "ParentLink"]:
        """Reads the configuration, and ties this process's life to its parent's.

        SIGUSR1 prints the stacks of all threads to stderr from here on. Raises `EOFError` if the
        parent is gone already.
        """
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        sock = socket.socket(fileno=config_fd)
        set_parent_death_signal(recv_frame(sock, msgspec.msgpack.Decoder(int)))
        configuration = recv_frame(sock, msgspec.msgpack.Decoder(type_))
        threading.Thread(target=_end_with_parent, args=(sock,), daemon=True).start()
        return configuration, cls(sock)

    def report_serving(self, what: str = "") -> None:
        """Tells the parent that this process does its work, and what it serves."""
        send_frame(self._socket, ChildReport("serving", what))

    def beat(self) -> None:
        """Tells the parent that this process is not hung. Never waits: a parent that is stopped
        does not take it."""
        frame = encode_frame(ChildReport("alive"))
        with contextlib.suppress(OSError):  # so small a one is taken as a whole, or not at all
            self._socket.send(frame, socket.MSG_DONTWAIT)

    async def keep_beating(self) -> NoReturn:
        """Has the parent know, until cancelled, that this event loop is not hung."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT_SECONDS)

    def fail(self, message: str) -> NoReturn:
        """Tells the parent why this configuration cannot work, and exits.

        The parent shows the message as the last thing that it says; nothing is restarted.
        """
        with contextlib.suppress(OSError):
            send_frame(self._socket, ChildReport("failed", message))
        sys.exit(EXIT_CONFIGURATION)


def _end_with_parent(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(1):
            pass
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid())
    os._exit(1)
