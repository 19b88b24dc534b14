"""Logs: pieces become lines, files stay small, readers lose nothing."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.local import log_files
from pagelet.local.log_files import Follower, RotatingLog, read_last


@given(st.lists(st.binary(max_size=20).map(lambda piece: piece.replace(b"\r", b"")), max_size=20))
def test_output_in_any_pieces_is_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    log = RotatingLog(path)
    for piece in pieces:
        log.write(piece)
    log.close()
    text = b"".join(pieces).decode(errors="replace")
    expected = text if not text or text.endswith("\n") else text + "\n"
    assert path.read_bytes().decode() == expected
    assert log.tail == expected.split("\n")[:-1]
    assert read_last(path, 30) == log.tail


def test_a_line_without_an_end_is_not_kept_in_memory(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "a.log")
    for _ in range(48):
        log.write(b"x" * (64 << 10))
    assert (tmp_path / "a.log").stat().st_size > 2 << 20
    log.close()
    assert (tmp_path / "a.log").read_text().count("x") == 3 << 20


def test_only_the_newest_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_MOST_BYTES", 100)
    log = RotatingLog(tmp_path / "a.log")
    for number in range(100):
        log.write(b"line %d\n" % number)
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["a.log", "a.log.1", "a.log.2", "a.log.3"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert read_last(tmp_path / "a.log", 15) == [f"line {number}" for number in range(85, 100)]
    assert read_last(tmp_path / "a.log", 0) == []


def test_a_log_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "logs" / "a.log"
    log = RotatingLog(path)  # there is no such folder yet
    log.write(b"one\ntwo\n")
    path.parent.mkdir()
    log.write(b"three\n")
    assert path.read_text() == "three\n"
    path.unlink()
    path.symlink_to("/dev/full")
    full = RotatingLog(path)
    full.write(b"four\nfive\nsix\n")
    assert full.tail == ["four", "five", "six"], "what is told of a process does not need a disk"
    path.unlink()
    full.write(b"seven\n")
    assert path.read_text() == "seven\n"
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} cannot be written: No such file or directory; its lines are lost until it can be",
        f"{path} can be written again",
        f"{path} cannot be written: No space left on device; its lines are lost until it can be",
        f"{path} can be written again",
    ]
    path.unlink()
    path.symlink_to("/dev/full")
    last = RotatingLog(path)
    last.write(b"without an end")
    for each in (log, full, last):
        each.close()
    assert capfd.readouterr().err == ""


def test_a_rotation_that_fails_ends_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_MOST_BYTES", 100)
    log = RotatingLog(tmp_path / "a.log")
    in_the_way = tmp_path / "a.log.3"
    in_the_way.mkdir()
    (tmp_path / "a.log.2").touch()
    for number in range(20):
        log.write(b"line %d\n" % number)
    in_the_way.rmdir()
    log.write(b"the last\n")
    log.close()
    assert (tmp_path / "a.log").read_text() == "the last\n"
    assert (tmp_path / "a.log.1").read_text().startswith("line 0\n")


def test_a_follower_sees_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_MOST_BYTES", 100)

    def find() -> Sequence[Path]:
        return sorted(tmp_path.glob("*.log"))

    first = RotatingLog(tmp_path / "a.log")
    first.write(b"before\n")
    follower = Follower(find)
    first.write(b"one\ntw")
    assert [line for _, line in follower.poll()] == ["one"]
    first.write(b"o\n")
    second = RotatingLog(tmp_path / "b.log")
    second.write(b"another\n")
    assert [(path.stem, line) for path, line in follower.poll()] == [("a", "two"), ("b", "another")]
    for number in range(12):  # over a rotation
        first.write(b"line %d ..\n" % number)
    assert [line for _, line in follower.poll()] == [f"line {number} .." for number in range(12)]
    for log in (first, second):
        log.close()
    (tmp_path / "b.log").unlink()
    (tmp_path / "c.log").write_text("of the next\n")
    assert [line for _, line in follower.poll()] == ["of the next"]
    assert opened_in(tmp_path) == {"a.log", "c.log"}, "a log that is gone is let go"
    follower.close()


def opened_in(folder: Path) -> set[str]:
    """Names of the files there that this process has open; those that are gone say so."""
    names = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            file = descriptor.readlink()
            names |= {file.name} if file.parent == folder else set()
    return names


def test_what_a_process_says_is_its_own(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "a.log")
    log.write(b"of the first\nwithout an end")
    log.forget()
    log.write(b"of the second\n")
    log.close()
    assert log.tail == ["of the second"]
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert lines == ["of the first", "without an end", "of the second"]
