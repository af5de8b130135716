"""Locks: held by one process at a time, and never at the cost of a file."""

import os
from pathlib import Path

import pytest

from edgewise.storage import locked
from edgewise.storage.locks import open_locked


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    first = open_locked(tmp_path / "lock")
    assert first is not None
    assert open_locked(tmp_path / "lock") is None
    with locked(tmp_path / "lock") as free:
        assert not free
    first.close()
    again = open_locked(tmp_path / "lock")
    assert again is not None
    again.close()


def test_a_file_in_the_place_of_a_lock_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("mine")
    file = open_locked(tmp_path / "lock")
    assert file is not None
    file.close()
    assert (tmp_path / "lock").read_text() == "mine"


def test_a_link_or_a_fifo_in_the_place_of_a_lock_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError):  # noqa: PT011
            open_locked(tmp_path / name)
    assert not (tmp_path / "real").exists()
