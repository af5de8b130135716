"""What a command may write to."""

import os
import socket
from pathlib import Path

import pytest
from messages import raises

from edgewise.errors import SettingError
from edgewise.storage import MANIFEST, require_free_files, require_free_folder, seal


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "sealed"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.bin").write_bytes(b"abc")
    seal(folder, "thing", 3)
    return folder


def test_a_place_where_nothing_is_or_an_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty", "deep/er"):
        for overwrite in (True, False):
            require_free_folder(tmp_path / name, "thing", overwrite=overwrite)


def test_what_exists_is_replaced_only_when_told_to(sealed: Path) -> None:
    with raises(SettingError, sealed, "--overwrite"):
        require_free_folder(sealed, "thing", overwrite=False)
    require_free_folder(sealed, "thing", overwrite=True)


@pytest.mark.parametrize("overwrite", [True, False])
def test_only_a_folder_of_the_same_kind_is_replaced(
    sealed: Path, tmp_path: Path, overwrite: bool
) -> None:
    with raises(SettingError, sealed, "corpus", "--overwrite", "--out"):
        require_free_folder(sealed, "corpus", overwrite=overwrite)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    os.mkfifo(tmp_path / "fifo")
    for name in ("file", "folder", "fifo"):
        with raises(SettingError, tmp_path / name, "thing", "--overwrite", "--out"):
            require_free_folder(tmp_path / name, "thing", overwrite=overwrite)


@pytest.mark.parametrize("content", [b"[]", b"null", b'{"name": "of a web site"}'])
def test_a_folder_with_a_manifest_of_something_else_is_not_replaced(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / MANIFEST).write_bytes(content)
    with raises(SettingError, tmp_path / "site", "thing", "--overwrite", "--out"):
        require_free_folder(tmp_path / "site", "thing", overwrite=True)


@pytest.mark.parametrize("name", ["notes.txt", "inner/notes.txt", ".git/HEAD"])
def test_a_folder_with_a_file_of_the_user_is_not_replaced(sealed: Path, name: str) -> None:
    (sealed / name).parent.mkdir(exist_ok=True)
    (sealed / name).write_text("mine")
    with raises(SettingError, sealed, name.removesuffix("/HEAD"), "--overwrite"):
        require_free_folder(sealed, "thing", overwrite=True)


def test_a_folder_with_an_empty_folder_or_a_link_of_the_user_is_not_replaced(sealed: Path) -> None:
    (sealed / "empty").mkdir()
    with raises(SettingError, sealed, "empty", "--overwrite"):
        require_free_folder(sealed, "thing", overwrite=True)
    (sealed / "empty").rmdir()
    (sealed / "link").symlink_to("inner")
    with raises(SettingError, sealed, "link", "--overwrite"):
        require_free_folder(sealed, "thing", overwrite=True)


def test_a_checkpoint_of_a_run_is_not_replaced_also_through_a_link(sealed: Path) -> None:
    run = sealed.parent / "run"
    (run / "checkpoints").mkdir(parents=True)
    sealed.rename(run / "checkpoints" / "step-1")
    (run / "run.json").write_text("{}")
    (run / "last").symlink_to("checkpoints/step-1")
    for name in ("last", "checkpoints/step-1", "checkpoints/new"):
        with raises(SettingError, run / name, run, "checkpoints"):
            require_free_folder(run / name, "thing", overwrite=True)
    require_free_folder(run / "pictures", "thing", overwrite=True)


def test_a_parent_that_is_a_file_is_named(sealed: Path) -> None:
    inside = sealed / "inner" / "a.bin" / "out"
    for overwrite in (True, False):
        with pytest.raises(NotADirectoryError) as caught:
            require_free_folder(inside, "thing", overwrite=overwrite)
        assert caught.value.filename == str(inside.parent)
        with pytest.raises(NotADirectoryError):
            require_free_files({"--out": inside}, overwrite=overwrite)


def test_a_regular_file_is_replaced_only_when_told_to(tmp_path: Path) -> None:
    path = tmp_path / "a"
    require_free_files({"--out": path, "--json": None}, overwrite=False)
    path.write_text("mine")
    with raises(SettingError, path, "--overwrite"):
        require_free_files({"--out": path}, overwrite=False)
    require_free_files({"--out": path}, overwrite=True)


@pytest.mark.parametrize("overwrite", [True, False])
def test_devices_and_fifos_are_written_into_and_never_replaced(
    tmp_path: Path, overwrite: bool
) -> None:
    os.mkfifo(tmp_path / "fifo")
    targets = {"--out": Path(os.devnull), "--json": Path(os.devnull), "--x": tmp_path / "fifo"}
    require_free_files(targets, overwrite=overwrite)


@pytest.mark.parametrize("overwrite", [True, False])
def test_folders_and_sockets_cannot_be_written_into(
    tmp_path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises(SettingError, "--out", tmp_path, "folder"):
        require_free_files({"--out": tmp_path}, overwrite=overwrite)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)  # the path of a socket has at most 108 bytes
        listener.bind("socket")
        with raises(SettingError, "--out", "socket"):
            require_free_files({"--out": Path("socket")}, overwrite=overwrite)


def test_two_options_that_name_one_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "real").write_text("mine")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "hard").hardlink_to(tmp_path / "real")
    pairs = [("x", "sub/../x"), ("real", "link"), ("real", "hard"), ("./x", "x")]
    for one, other in pairs:
        with raises(SettingError, "--out", "--json"):
            require_free_files(
                {"--out": tmp_path / one, "--json": tmp_path / other}, overwrite=True
            )


def test_what_is_read_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "source").write_text("mine")
    (tmp_path / "link").symlink_to("source")
    used = {"standard input": tmp_path / "source", "m": tmp_path / "model"}
    names = {"source": "standard input", "link": "standard input", "model/config.json": "inside m"}
    for name, said in (names | {"model/new": "inside m"}).items():
        with raises(SettingError, "--out", tmp_path / name, said):
            require_free_files({"--out": tmp_path / name}, overwrite=True, used=used)
    require_free_files({"--out": tmp_path / "new"}, overwrite=True, used=used)
