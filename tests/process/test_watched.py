import os

import pytest

from pagelet.process.watched import WatchedPath


def test_a_file_is_reported_once_for_each_change(tmp_path):
    file = tmp_path / "file"
    file.write_text("one")
    watched = WatchedPath(file)
    assert [watched.changed(now=0), watched.changed(now=1), watched.changed(now=2)] == [
        *(True, False, False)
    ]
    file.write_text("another")
    assert not watched.changed(now=2.5), "looked again too soon"
    assert watched.changed(now=3)
    file.unlink()
    assert [watched.changed(now=4), watched.changed(now=5)] == [True, False]
    file.write_text("another")
    assert watched.changed(now=6)


def test_a_replacement_of_equal_size_and_time_is_noticed(tmp_path):
    file, new = tmp_path / "file", tmp_path / "new"
    file.write_text("one")
    new.write_text("two")
    os.utime(file, ns=(5, 5))
    os.utime(new, ns=(5, 5))
    watched = WatchedPath(file)
    assert watched.changed(now=0)
    new.rename(file)
    assert watched.changed(now=1)


def _swap_secret(mount, name, files):
    """As the kubelet updates a mounted Secret: new data behind a link that is replaced at once."""
    data = mount / f"..{name}"
    data.mkdir()
    for file, text in files.items():
        (data / file).write_text(text)
        if not (mount / file).is_symlink():
            (mount / file).symlink_to(f"..data/{file}")
    (mount / "..new").symlink_to(data.name)
    (mount / "..new").rename(mount / "..data")


def test_a_mounted_secret_is_a_folder_whose_files_are_swapped(tmp_path):
    _swap_secret(tmp_path, "1", {"b": "1", "a": "1"})
    watched = WatchedPath(tmp_path)
    assert watched.changed(now=0)
    assert not watched.changed(now=1)
    assert [file.name for file in watched.files()] == ["a", "b"]
    _swap_secret(tmp_path, "2", {"b": "2", "a": "1"})
    assert watched.changed(now=2)
    assert [file.read_text() for file in watched.files()] == ["1", "2"]


def test_what_is_not_there_is_a_change_at_first(tmp_path):
    watched = WatchedPath(tmp_path / "none")
    assert watched.changed(now=0)
    with pytest.raises(FileNotFoundError):
        watched.files()[0].read_text()
