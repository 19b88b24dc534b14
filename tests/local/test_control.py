"""The control socket and the state directory between processes."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pagelet.local.control import Call, ControlError, call, listen
from pagelet.local.log_files import RotatingLog
from pagelet.local.state_dir import (
    AlreadyRuns,
    Owner,
    StateDir,
    UnusableStateDir,
    default_state_dir,
)

HOLDER = """
import sys, time
from pathlib import Path
from pagelet.local.state_dir import StateDir
with StateDir(Path(sys.argv[1])).hold():
    print("held", flush=True)
    time.sleep(600)
"""


async def test_calls_are_answered_and_errors_passed_on(tmp_path: Path) -> None:
    path = str(tmp_path / "control")

    async def handle(received: Call) -> object:
        if received.command == "stop":
            raise ControlError("not now")
        return {"pool": received.pool, "replicas": received.replicas}

    async with await listen(path, handle):
        scale = Call(command="scale", pool="sim", replicas=3)
        assert await asyncio.to_thread(call, path, scale, dict[str, Any]) == {
            "pool": "sim",
            "replicas": 3,
        }
        with pytest.raises(ControlError, match="not now"):
            await asyncio.to_thread(call, path, Call(command="stop"), dict[str, Any])
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"command": "nothing"}\n')
        assert b"Invalid enum value 'nothing'" in await reader.readline()
        writer.close()
        with pytest.raises(ControlError, match="another version"):
            await asyncio.to_thread(call, path, scale, dict[str, int])
    with pytest.raises(ControlError, match="does not answer"):
        await asyncio.to_thread(call, path, scale, dict[str, Any])


def test_one_holds_a_state_directory_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    assert not state.is_held()
    owner = Owner(pid=os.getpid(), control="c", file="f", host="h", url="u")
    with state.hold():
        assert state.owner() is None
        state.write_owner(owner)
        assert state.owner() == owner
        assert state.path.stat().st_mode & 0o777 == 0o700
        with pytest.raises(AlreadyRuns), StateDir(state.path).hold():
            pass
    assert state.owner() is None
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state.path)], stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        state.write_owner(owner)
        assert state.owner() == owner
        holder.kill()
    assert state.owner() is None
    with state.hold():
        assert state.owner() is None, "what a killed one left counts for nothing"


def test_one_that_looks_keeps_nobody_from_holding_it(tmp_path: Path) -> None:
    """As `pagelet up --detach` does, again and again, while what it has started begins."""
    state = StateDir(tmp_path)
    state.create()
    looks = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(looks, fcntl.LOCK_SH)
    assert not state.is_held()
    released = threading.Timer(0.1, os.close, [looks])
    released.start()
    with state.hold():
        assert state.is_held()
    released.join()


def test_a_state_directory_that_is_removed_is_made_again(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    other = StateDir(state.path)
    owner = Owner(pid=os.getpid(), control="c", file="f", host="h", url="u")
    with state.hold():
        state.write_owner(owner)
        assert not state.keep(owner)
        for remove in (
            lambda: shutil.rmtree(state.path),
            lambda: shutil.rmtree(state.logs),
            lambda: (state.path / "lock").unlink(),
            lambda: (state.path / "owner.json").unlink(),
        ):
            remove()
            assert state.keep(owner)
            assert other.owner() == owner
            assert state.logs.is_dir()
            assert not state.keep(owner)
        shutil.rmtree(state.path)
        with other.hold():  # it was quicker
            other.write_owner(owner)
            with pytest.raises(AlreadyRuns):
                state.keep(owner)
        assert state.keep(owner)
        with pytest.raises(AlreadyRuns), other.hold():
            pass
        shutil.rmtree(state.path)
        state.path.touch()
        with pytest.raises(UnusableStateDir, match="Not a directory"):
            state.keep(owner)
    assert state.path.read_bytes() == b""


def test_a_state_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    owner = Owner(pid=os.getpid(), control="c", file="f", host="h", url="u")
    plain = StateDir(tmp_path / "plain")
    plain.path.touch()
    for use in (plain.is_held, plain.owner, plain.create, plain.open_start_up):
        with pytest.raises(UnusableStateDir) as raised:
            use()
        assert str(plain.path) in str(raised.value)
        assert str(raised.value).endswith("; name another one with --state-dir")
    with pytest.raises(UnusableStateDir, match="Not a directory"):
        plain.write_owner(owner)
    with pytest.raises(UnusableStateDir, match="No such file"), StateDir(Path("/proc/x")).hold():
        pass
    full = StateDir(tmp_path / "full")
    full.create()
    (full.path / "start-up").symlink_to("/dev/full")
    with pytest.raises(UnusableStateDir, match="No space left on device; free some space there"):
        full.open_start_up()


def test_a_log_goes_with_what_was_rotated_away(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.create()
    for name in ("sim-1.log", "sim-1.log.1", "sim-10.log", "sim-2.log", "router.log"):
        (state.logs / name).touch()
    state.remove_log("sim-1")
    assert [path.name for path in state.log_paths()] == ["router.log", "sim-2.log", "sim-10.log"]
    assert len(list(state.logs.iterdir())) == 3


def test_a_folder_of_the_users_keeps_its_mode_and_what_is_in_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    theirs = {shared / "logs" / name for name in ("sim-1.log.old", "sim-1.logbook", "a.log")}
    theirs.add(shared / "notes")
    (shared / "logs").mkdir(parents=True)
    for path in theirs:
        path.write_text("theirs")
    shared.chmod(0o1777)
    (shared / "logs").chmod(0o755)
    state = StateDir(shared)
    before = os.umask(0)
    try:
        with state.hold(), state.open_start_up():
            state.write_owner(Owner(pid=os.getpid(), control="c", file="f", host="h", url="u"))
            log = RotatingLog(state.log_path("sim-1"))
            log.write(b"ours\n")
            log.close()
            ours = {path for path in shared.rglob("*") if path.is_file()} - theirs
            assert {path.name for path in ours} == {"lock", "owner.json", "start-up", "sim-1.log"}
            assert {path.stat().st_mode & 0o777 for path in ours} == {0o600}
            shared.joinpath("logs", "sim-1.log.3").touch()
            state.remove_log("sim-1")
            made = StateDir(tmp_path / "not" / "yet")
            made.create()
    finally:
        os.umask(before)
    assert {path for path in shared.rglob("*") if path.is_file()} - ours == theirs
    assert {path.read_text() for path in theirs} == {"theirs"}
    assert shared.stat().st_mode & 0o7777 == 0o1777
    assert (shared / "logs").stat().st_mode & 0o7777 == 0o755
    assert {path.stat().st_mode & 0o7777 for path in (made.path, made.logs)} == {0o700}


@pytest.mark.parametrize("content", [b"no JSON", b"[]", b'{"name": "someone"}'])
def test_a_file_of_the_users_is_not_taken_for_ours(tmp_path: Path, content: bytes) -> None:
    state = StateDir(tmp_path)
    (tmp_path / "owner.json").write_bytes(content)
    with (
        pytest.raises(
            UnusableStateDir, match=r"owner\.json is none of `pagelet up`: .*; remove that"
        ),
        state.hold(),
    ):
        pass
    assert (tmp_path / "owner.json").read_bytes() == content
    assert not state.is_held()


@pytest.mark.parametrize(
    "content", [b"", b'{"pid": 1, "control": "/tmp/c", "of": "another version"}']
)
def test_what_one_that_was_killed_left_is_cleared_up(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "owner.json").write_bytes(content)
    with StateDir(tmp_path).hold():
        assert not (tmp_path / "owner.json").exists()


def test_the_state_is_kept_where_the_user_keeps_such_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "pagelet"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / ".local" / "state" / "pagelet"
