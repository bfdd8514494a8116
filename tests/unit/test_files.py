"""Files that take the place of others."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from q7x2_ep.files import replacing


def write(path: str, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def test_the_mode_stays(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write(str(path), b"new")
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["model"]


def test_a_link_leads_to_what_was_written(tmp_path):
    (tmp_path / "far").mkdir()
    path, link = tmp_path / "far" / "model", tmp_path / "link"
    path.write_bytes(b"old")
    link.symlink_to(path)
    write(str(link), b"new")
    assert link.is_symlink() and path.read_bytes() == b"new"
    (tmp_path / "dangling").symlink_to(tmp_path / "far" / "other")
    write(str(tmp_path / "dangling"), b"made")
    assert (tmp_path / "far" / "other").read_bytes() == b"made"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_what_is_no_file_is_written_to(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write(str(path), b"through")
    assert os.read(end, 20) == b"through" and stat.S_ISFIFO(path.stat().st_mode)
    os.close(end)


def test_a_folder_is_named(tmp_path):
    for path, problem in ((str(tmp_path), IsADirectoryError), ("", FileNotFoundError)):
        with pytest.raises(problem) as caught:
            write(path, b"")
        assert caught.value.filename == path
    assert os.listdir(tmp_path) == []


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), replacing(str(path)) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["model"]
