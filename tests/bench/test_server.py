"""The port of a server that is started to be measured."""

import socket
from pathlib import Path

import pytest

from pagelet.bench import server
from pagelet.bench.server import HOST, free_port


def test_a_free_port_is_none_that_the_system_gives_to_others() -> None:
    first, last = map(int, server._GIVEN_PORTS.read_text().split())
    if first <= server._LOWEST_PORT:
        pytest.skip("the system gives all ports here")
    ports = {free_port() for _ in range(20)}
    assert not ports & {*range(first, last + 1)}
    assert len(ports) > 1


@pytest.mark.parametrize("given", ["1024 60999", None])
def test_where_the_system_gives_all_ports_it_gives_one(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_GIVEN_PORTS", tmp_path / "range")
    if given:
        (tmp_path / "range").write_text(given)
    with socket.create_server((HOST, free_port())):
        pass


def test_the_preferred_port_is_taken_unless_somebody_listens_there() -> None:
    preferred = free_port()
    assert free_port(preferred) == preferred
    with socket.create_server((HOST, preferred)):
        assert free_port(preferred) != preferred
