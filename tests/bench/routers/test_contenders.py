"""Routers are named by kind and policy, and started in front of the replicas."""

from pathlib import Path

import pytest

from pagelet.bench.routers.contenders import DEFAULT, RouterUnknown, Target, parse_contender
from pagelet.bench.server import PAGELET

TARGETS = [Target(f"http://h:{port}", f"tcp://h:{port + 1}", 16, "model") for port in (1000, 2000)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("smg", "vllm-router"):
        (tmp_path / name).touch(0o755)
    return tmp_path


@pytest.mark.parametrize("name", DEFAULT)
def test_every_router_gets_its_policy_port_and_replicas(folder: Path, name: str) -> None:
    contender = parse_contender(name, folder)
    command = contender.command(8123, TARGETS)
    assert command[0] in (PAGELET, str(folder / "smg"), str(folder / "vllm-router"))
    assert {name.partition(":")[2], "8123", *(target.url for target in TARGETS)} <= {*command}


def test_a_router_that_follows_events_is_told_where_they_are(folder: Path) -> None:
    command = parse_contender("vllm-router:kv_aware", folder).command(8123, TARGETS)
    assert {"http://h:1000=tcp://h:1001", "http://h:2000=tcp://h:2001"} <= {*command}


@pytest.mark.parametrize("name", ["nginx:round_robin", "smg", "pagelet:"])
def test_no_such_router(folder: Path, name: str) -> None:
    with pytest.raises(RouterUnknown, match="is no router: give pagelet, smg, vllm-router"):
        parse_contender(name, folder)


def test_a_router_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(RouterUnknown, match="smg is not installed"):
        parse_contender("smg:cache_aware", tmp_path)
