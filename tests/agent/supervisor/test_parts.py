"""The supervisor's parts on their own: watchdog, listening socket."""

import os
import socket

import pytest

from pagelet.agent.supervisor.watchdog import Watchdog
from pagelet.engine.core.heartbeat import CoreState, Heartbeat
from pagelet.process.listener import ListenError, bind, inherit, url


def beat(step: int = 3, num_unfinished: int = 1, state: CoreState = CoreState.READY) -> Heartbeat:
    return Heartbeat(
        pid=1,
        state=state,
        step=step,
        last_loop=0.0,
        step_began=0.0,
        num_unfinished=num_unfinished,
        kv_cache_tokens=4096,
        stage="ready",
    )


def looks(watchdog: Watchdog, start: float, beats: list[Heartbeat | None]) -> list[bool]:
    """One look a second; whether each found a hang."""
    return [watchdog.look(b, start + i) is not None for i, b in enumerate(beats)]


class TestWatchdog:
    def test_a_step_that_stands_still_with_work_is_a_hang(self) -> None:
        watchdog = Watchdog(step_timeout=10)
        watchdog.look(None, 0.0)
        found = looks(watchdog, 1.0, [beat()] * 12)
        assert found == [False] * 10 + [True] * 2

    def test_the_hang_says_what_the_core_was_at(self) -> None:
        watchdog = Watchdog(step_timeout=2)
        for second in range(4):
            hang = watchdog.look(beat(step=41, num_unfinished=7), float(second))
        assert str(hang).startswith("step 42 made no progress for")
        assert str(hang).endswith("with 7 unfinished requests")

    def test_slow_progress_is_none(self) -> None:
        watchdog = Watchdog(step_timeout=10)
        assert not any(looks(watchdog, 0.0, [beat(step=i // 9) for i in range(100)]))

    @pytest.mark.parametrize("idle", [None, beat(num_unfinished=0), beat(state=CoreState.STARTING)])
    def test_a_core_without_work_may_stand_still(self, idle: Heartbeat | None) -> None:
        watchdog = Watchdog(step_timeout=10)
        assert not any(looks(watchdog, 0.0, [idle] * 100))

    def test_idleness_does_not_count_towards_the_next_step(self) -> None:
        watchdog = Watchdog(step_timeout=10)
        beats = ([beat()] * 9 + [beat(num_unfinished=0)]) * 5
        assert not any(looks(watchdog, 0.0, beats))

    def test_a_frozen_machine_is_no_hang(self) -> None:
        watchdog = Watchdog(step_timeout=10)
        watchdog.look(beat(), 0.0)
        assert watchdog.look(beat(), 3600.0) is None


class TestListener:
    def test_a_port_in_use_is_named_with_what_to_do(self) -> None:
        with bind("127.0.0.1", 0) as first:
            port = first.getsockname()[1]
            with pytest.raises(ListenError, match=rf"port {port} .* in use .* --port, or 0"):
                bind("127.0.0.1", port)

    def test_port_0_takes_a_free_one_and_the_url_has_it(self) -> None:
        with bind("0.0.0.0", 0) as listener:
            port = listener.getsockname()[1]
            assert url(listener) == f"http://127.0.0.1:{port}/v1"
            socket.create_connection(("127.0.0.1", port)).close()

    def test_only_a_listening_socket_can_be_inherited(self) -> None:
        with bind("127.0.0.1", 0) as listener, inherit(os.dup(listener.fileno())) as inherited:
            assert url(inherited) == url(listener)
        with socket.socket() as idle, open(os.devnull) as file:
            for fd in (idle.fileno(), file.fileno(), 4000):
                with pytest.raises(ListenError, match=f"descriptor {fd} is no listening socket"):
                    inherit(fd)

    def test_a_name_that_is_none_is_an_error(self) -> None:
        with pytest.raises(ListenError, match="--host no such name"):
            bind("no such name", 0)

    def test_a_foreign_address_is_an_error(self) -> None:
        with pytest.raises(ListenError, match=r"192\.0\.2\.1 is no address of this machine"):
            bind("192.0.2.1", 0)
