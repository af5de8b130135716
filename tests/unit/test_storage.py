"""Folders that are written whole or not at all, and damage that is found."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from messages import assert_mentions, raises

from edgewise.errors import DataError, SettingError
from edgewise.storage import (
    MANIFEST,
    check,
    new_folder,
    read_json,
    require_free,
    seal,
    sha256,
    write_json,
)


class StopHereError(Exception):
    """Raised in the middle of writing."""


def everything(folder: Path) -> dict[str, bytes | None]:
    """All that lies below a folder, hidden or not: the content of files, None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "sealed"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"abc")
    (folder / "inner" / "b.bin").write_bytes(bytes(range(200)))
    (folder / "empty.bin").write_bytes(b"")
    seal(folder, "thing", 3)
    return folder


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with new_folder(out) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("one")
        assert not out.exists()
    assert everything(tmp_path / "deep") == {"out": None, "out/inner": None, "out/inner/a": b"one"}


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Record each fsync: the inode, and whether the target existed at that moment."""
    calls: list[tuple[int, bool]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        calls.append((os.fstat(descriptor).st_ino, Path("target").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    return calls


def test_a_folder_is_flushed_to_the_disk_before_it_appears_and_its_parent_after(
    tmp_path: Path, flushed: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with new_folder(Path("target")) as folder:
        (folder / "inner").mkdir()
        (folder / "a.bin").write_bytes(b"abc")
        (folder / "inner" / "b.bin").write_bytes(b"def")
    before = {inode for inode, there in flushed if not there}
    paths = [Path("target"), *Path("target").rglob("*")]
    assert {path.stat().st_ino for path in paths} <= before
    assert (tmp_path.stat().st_ino, True) in flushed


def test_a_text_is_flushed_to_the_disk_before_it_appears(
    tmp_path: Path, flushed: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(Path("target"), 1)
    assert flushed == [(Path("target").stat().st_ino, False)]


def test_what_was_there_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")
    with new_folder(out) as folder:
        (folder / "new").write_text("new")
        assert everything(out) == {"old": b"old"}
    assert everything(tmp_path) == {"out": None, "out/new": b"new"}


@pytest.mark.parametrize("error", [StopHereError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existing", [True, False])
def test_an_error_leaves_the_target_as_it_was_and_nothing_else(
    tmp_path: Path, existing: bool, error: type[BaseException]
) -> None:
    out = tmp_path / "out"
    if existing:
        out.mkdir()
        (out / "old").write_text("old")
    before = everything(tmp_path)

    def write() -> None:
        with new_folder(out) as folder:
            (folder / "new").write_text("new")
            raise error

    with pytest.raises(error):
        write()
    assert everything(tmp_path) == before


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    for name in (".out.new-1", ".other.new-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    with new_folder(tmp_path / "out"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.new-1", "out"]


def test_a_link_to_a_folder_is_replaced_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with new_folder(tmp_path / "link") as folder:
        (folder / "new").write_text("new")
    assert (tmp_path / "link" / "new").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_folder_as_it_was_sealed_passes(sealed: Path) -> None:
    check(sealed, "thing", 3)
    manifest = read_json(sealed / MANIFEST)
    assert (manifest["kind"], manifest["version"]) == ("thing", 3)
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == {
        "a.bin": 3,
        "empty.bin": 0,
        "inner/b.bin": 200,
    }


def test_sha256_is_that_of_the_bytes(sealed: Path) -> None:
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    assert sha256(sealed / "a.bin") == abc


@pytest.mark.parametrize("name", ["a.bin", "empty.bin", "inner/b.bin"])
def test_a_missing_file_is_found(sealed: Path, name: str) -> None:
    (sealed / name).unlink()
    with raises(DataError, sealed, name, "missing"):
        check(sealed, "thing", 3)


def test_a_truncated_file_is_found(sealed: Path) -> None:
    (sealed / "inner" / "b.bin").write_bytes(bytes(range(199)))
    with raises(DataError, sealed, "inner/b.bin", 199, 200):
        check(sealed, "thing", 3)


@pytest.mark.parametrize("at", [0, 77, 199])
def test_a_flipped_bit_is_found(sealed: Path, at: int) -> None:
    content = bytearray(range(200))
    content[at] ^= 16
    (sealed / "inner" / "b.bin").write_bytes(content)
    with raises(DataError, sealed, "damaged", "inner/b.bin"):
        check(sealed, "thing", 3)


def test_another_kind_is_named(sealed: Path) -> None:
    with raises(DataError, sealed, "corpus", "thing"):
        check(sealed, "corpus", 3)


@pytest.mark.parametrize("version", [2, 4])
def test_another_version_is_named(sealed: Path, version: int) -> None:
    with raises(DataError, sealed, "version", "thing") as caught:
        check(sealed, "thing", version)
    # The path may have any number in it.
    assert_mentions(str(caught.value).replace(str(sealed), ""), 3, version)


def test_a_folder_without_a_manifest_is_nothing_of_ours(tmp_path: Path) -> None:
    with raises(DataError, tmp_path, "thing", MANIFEST):
        check(tmp_path, "thing", 3)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for name in ("none", "file"):
        with raises(SettingError, tmp_path / name, "thing"):
            check(tmp_path / name, "thing", 3)


@pytest.mark.parametrize("content", [b"", b"{", b"no JSON", b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_no_json_is_found(sealed: Path, content: bytes) -> None:
    (sealed / MANIFEST).write_bytes(content)
    with raises(DataError, sealed / MANIFEST, "JSON"):
        check(sealed, "thing", 3)


@pytest.mark.parametrize(
    "content",
    [
        None,
        5,
        "thing",
        [],
        {},
        {"kind": "thing", "version": 3},
        {"kind": "thing", "version": 3, "files": ["a.bin"]},
        {"kind": "thing", "version": 3, "files": {"a.bin": {"bytes": 3}}},
        {"kind": "thing", "version": 3, "files": {"a.bin": 3}},
    ],
)
def test_a_manifest_of_another_form_is_found(sealed: Path, content: Any) -> None:
    write_json(sealed / MANIFEST, content)
    with raises(DataError, sealed / MANIFEST, "damaged", "kind", "version", "files"):
        check(sealed, "thing", 3)


@pytest.mark.parametrize("form", ["../{}", "inner/../../{}", "{parent}/{}"])
def test_a_manifest_that_names_a_file_outside_is_refused(sealed: Path, form: str) -> None:
    (sealed.parent / "outside").write_bytes(b"abc")
    name = form.format("outside", parent=sealed.parent)
    manifest = read_json(sealed / MANIFEST)
    manifest["files"][name] = manifest["files"]["a.bin"]
    write_json(sealed / MANIFEST, manifest)
    with raises(DataError, sealed / MANIFEST, "damaged", name):
        check(sealed, "thing", 3)


def test_a_place_where_nothing_is_or_an_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        for overwrite in (True, False):
            require_free(tmp_path / name, "thing", overwrite=overwrite)


def test_what_exists_is_replaced_only_when_told_to(sealed: Path) -> None:
    with raises(SettingError, sealed, "--overwrite"):
        require_free(sealed, "thing", overwrite=False)
    require_free(sealed, "thing", overwrite=True)


def test_only_a_folder_of_the_same_kind_is_replaced(sealed: Path, tmp_path: Path) -> None:
    with raises(SettingError, sealed, "corpus", "--overwrite", "--out"):
        require_free(sealed, "corpus", overwrite=True)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    for name in ("file", "folder"):
        with raises(SettingError, tmp_path / name, "thing", "--overwrite", "--out"):
            require_free(tmp_path / name, "thing", overwrite=True)


@pytest.mark.parametrize("content", [b"[]", b"null", b'{"name": "of a web site"}'])
def test_a_folder_with_a_manifest_of_something_else_is_not_replaced(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / MANIFEST).write_bytes(content)
    with raises(SettingError, tmp_path / "site", "thing", "--overwrite", "--out"):
        require_free(tmp_path / "site", "thing", overwrite=True)


def test_json_comes_back_and_is_readable_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"name": "größer", "numbers": [1, 2.5, None, True]}
    write_json(path, value)
    assert read_json(path) == value
    assert "größer" in path.read_text(encoding="utf-8")
    assert path.read_bytes().endswith(b"}\n")


def test_json_with_a_name_that_is_not_utf8_can_be_written(tmp_path: Path) -> None:
    name = b"a\xff.en".decode(errors="surrogateescape")  # as Python gives names of files
    write_json(tmp_path / "a.json", {"source": name})
    assert read_json(tmp_path / "a.json") == {"source": name}


def test_json_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with path.open() as reader:  # who has it open still reads all of the old one
        write_json(path, {"new": 2})
        assert json.load(reader) == {"old": 1}
    assert read_json(path) == {"new": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_json_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, {"long enough to be written in part": ["x"] * 10_000, "no": object()})
    assert everything(tmp_path) == {"a.json": b'{\n "old": 1\n}\n'}


def test_two_writers_of_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as first:
        (first / "a").write_text("first")
        with (
            raises(SettingError, tmp_path / "out", "process"),
            new_folder(tmp_path / "out"),
        ):
            raise AssertionError
        assert (first / "a").read_text() == "first"
    assert everything(tmp_path) == {"out": None, "out/a": b"first"}


def test_a_kill_between_moving_the_old_away_and_the_new_in_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / ".out.old-99").mkdir()
    (tmp_path / ".out.old-99" / "a").write_text("old")
    (tmp_path / ".out.new-99").mkdir()
    with pytest.raises(StopHereError), new_folder(tmp_path / "out"):
        raise StopHereError
    assert everything(tmp_path) == {"out": None, "out/a": b"old"}


def test_what_was_moved_away_is_removed_once_the_new_is_there(tmp_path: Path) -> None:
    for name in ("out", ".out.old-99"):
        (tmp_path / name).mkdir()
    with new_folder(tmp_path / "out") as new:
        (new / "a").write_text("new")
    assert everything(tmp_path) == {"out": None, "out/a": b"new"}
