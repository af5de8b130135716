"""Sealed folders: damage is found, and only listed, regular files inside are read."""

import os
from pathlib import Path
from typing import Any

import pytest
from messages import assert_mentions, raises

from edgewise.errors import DataError, SettingError
from edgewise.storage import (
    MANIFEST,
    SealedFolder,
    kind_of,
    open_sealed,
    read_json,
    read_regular,
    seal,
    sha256,
    write_json,
)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "sealed"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"abc")
    (folder / "inner" / "b.bin").write_bytes(bytes(range(200)))
    (folder / "empty.bin").write_bytes(b"")
    (folder / "README.md").write_text("about")
    seal(folder, "thing", 3)
    return folder


def verified(folder: Path) -> SealedFolder:
    found = open_sealed(folder, "thing", 3)
    found.verify()
    return found


def test_a_folder_as_it_was_sealed_passes(sealed: Path) -> None:
    found = verified(sealed)
    manifest = read_json(sealed / MANIFEST)
    assert (manifest["kind"], manifest["version"]) == ("thing", 3)
    assert {name: entry.get("bytes") for name, entry in manifest["files"].items()} == {
        "README.md": None,
        "a.bin": 3,
        "empty.bin": 0,
        "inner/b.bin": 200,
    }
    assert found.read("a.bin") == b"abc"
    assert found.file("inner/b.bin") == sealed / "inner" / "b.bin"
    found.require_unchanged()


def test_sha256_is_that_of_the_bytes(sealed: Path) -> None:
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    assert sha256(sealed / "a.bin") == abc
    assert verified(sealed).digest("a.bin") == abc


@pytest.mark.parametrize("name", ["a.bin", "empty.bin", "inner/b.bin", "README.md"])
def test_a_missing_file_is_found(sealed: Path, name: str) -> None:
    (sealed / name).unlink()
    with raises(DataError, sealed, name, "missing"):
        open_sealed(sealed, "thing", 3)


def test_a_truncated_file_is_found(sealed: Path) -> None:
    (sealed / "inner" / "b.bin").write_bytes(bytes(range(199)))
    with raises(DataError, sealed, "inner/b.bin", 199, 200):
        open_sealed(sealed, "thing", 3)


@pytest.mark.parametrize("at", [0, 77, 199])
@pytest.mark.parametrize("way", ["read", "file"])
def test_a_flipped_bit_is_found_when_the_file_is_read(sealed: Path, at: int, way: str) -> None:
    content = bytearray(range(200))
    content[at] ^= 16
    (sealed / "inner" / "b.bin").write_bytes(content)
    found = open_sealed(sealed, "thing", 3)
    with raises(DataError, sealed, "damaged", "inner/b.bin"):
        getattr(found, way)("inner/b.bin")


def test_what_people_edit_is_not_damaged(sealed: Path) -> None:
    (sealed / "README.md").write_text("about, and more")
    assert verified(sealed).read("README.md") == b"about, and more"


def test_a_hash_of_what_people_edit_that_an_older_version_wrote_is_not_looked_at(
    sealed: Path,
) -> None:
    manifest = read_json(sealed / MANIFEST)
    manifest["files"]["README.md"] = manifest["files"]["a.bin"]
    write_json(sealed / MANIFEST, manifest)
    verified(sealed)


def test_a_file_that_is_not_listed_is_not_read(sealed: Path) -> None:
    manifest = read_json(sealed / MANIFEST)
    del manifest["files"]["a.bin"]
    write_json(sealed / MANIFEST, manifest)
    found = open_sealed(sealed, "thing", 3)
    assert "a.bin" not in found and "empty.bin" in found
    for read in (found.read, found.file):
        with raises(DataError, sealed, MANIFEST, "a.bin"):
            read("a.bin")


def replaced(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)


KINDS = ["folder", "FIFO", "/dev/zero", "/etc/hostname", "nothing"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["inner/b.bin", "README.md", MANIFEST])
def test_what_is_no_regular_file_inside_is_not_opened(sealed: Path, name: str, kind: str) -> None:
    replaced(sealed / name, kind)
    with raises(DataError, sealed, name):
        verified(sealed)
    if name == MANIFEST:
        assert kind_of(sealed) is None


def test_a_link_to_a_file_inside_is_followed(sealed: Path) -> None:
    (sealed / "inner" / "c.bin").write_bytes(bytes(range(200)))
    replaced(sealed / "inner" / "b.bin", "c.bin")
    assert verified(sealed).read("inner/b.bin") == bytes(range(200))


def test_a_file_has_a_greatest_size(sealed: Path) -> None:
    with raises(DataError, "inner/b.bin", 199):
        open_sealed(sealed, "thing", 3).read("inner/b.bin", limit=199)
    with raises(DataError, "a.bin", 2):
        read_regular(sealed / "a.bin", 2)
    assert read_regular(sealed / "a.bin", 3) == b"abc"


@pytest.mark.parametrize("change", ["replace", "write", "remove"])
def test_a_file_that_changes_while_it_is_read_is_found(sealed: Path, change: str) -> None:
    found = open_sealed(sealed, "thing", 3)
    path = found.file("a.bin")
    if change == "write":
        path.write_bytes(b"abd")
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    if change == "replace":
        path.write_bytes(b"abd")
        os.utime(path, ns=(1, 1))
    with raises(DataError, path, "changed"):
        found.require_unchanged()


def test_another_kind_is_named(sealed: Path) -> None:
    with raises(DataError, sealed, "corpus", "thing"):
        open_sealed(sealed, "corpus", 3)
    assert kind_of(sealed) == "thing"


@pytest.mark.parametrize("version", [2, 4])
def test_another_version_is_named(sealed: Path, version: int) -> None:
    with raises(DataError, sealed, "version", "thing") as caught:
        open_sealed(sealed, "thing", version)
    # The path may have any number in it.
    assert_mentions(str(caught.value).replace(str(sealed), ""), 3, version)


def test_a_folder_without_a_manifest_is_nothing_of_ours(tmp_path: Path) -> None:
    with raises(DataError, tmp_path, "thing", MANIFEST):
        open_sealed(tmp_path, "thing", 3)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for name in ("none", "file"):
        with raises(SettingError, tmp_path / name, "thing"):
            open_sealed(tmp_path / name, "thing", 3)


DIGITS = b'{"kind": ' + b"1" * 5000 + b"}"


@pytest.mark.parametrize("content", [b"", b"{", b"no JSON", b"\xff\xfe", b"[" * 100_000, DIGITS])
def test_a_manifest_that_is_no_json_is_found(sealed: Path, content: bytes) -> None:
    (sealed / MANIFEST).write_bytes(content)
    with raises(DataError, sealed / MANIFEST, "JSON") as caught:
        open_sealed(sealed, "thing", 3)
    assert "set_int_max_str_digits" not in str(caught.value)
    assert kind_of(sealed) is None


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
        {"kind": "thing", "version": 3, "files": None},
        {"kind": "thing", "version": 3, "files": [[1, {}]]},
    ],
)
def test_a_manifest_of_another_form_is_found(sealed: Path, content: Any) -> None:
    write_json(sealed / MANIFEST, content)
    with raises(DataError, sealed / MANIFEST, "damaged", "kind", "version", "files"):
        open_sealed(sealed, "thing", 3)


@pytest.mark.parametrize(
    "entry",
    [3, None, {}, {"bytes": 3}, {"bytes": True, "sha256": "a" * 64}, {"bytes": 3, "sha256": "x"}],
)
def test_an_entry_of_another_form_is_found(sealed: Path, entry: Any) -> None:
    manifest = read_json(sealed / MANIFEST)
    manifest["files"]["a.bin"] = entry
    write_json(sealed / MANIFEST, manifest)
    with raises(DataError, sealed / MANIFEST, "damaged", "a.bin"):
        open_sealed(sealed, "thing", 3)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 5000, ""])
def test_a_manifest_with_a_name_that_no_file_has_is_refused(sealed: Path, name: str) -> None:
    manifest = read_json(sealed / MANIFEST)
    manifest["files"][name] = manifest["files"]["a.bin"]
    write_json(sealed / MANIFEST, manifest)
    with raises(DataError, sealed / MANIFEST, "damaged") as caught:
        open_sealed(sealed, "thing", 3)
    assert len(str(caught.value)) < 1000


def test_what_may_be_edited_has_no_hash(sealed: Path) -> None:
    with raises(DataError, sealed / MANIFEST, "README.md"):
        verified(sealed).digest("README.md")


def test_a_folder_of_any_kind_can_be_opened(sealed: Path) -> None:
    assert open_sealed(sealed).read("a.bin") == b"abc"


@pytest.mark.parametrize("form", ["../{}", "inner/../../{}", "{parent}/{}", "./{}", "inner//b.bin"])
def test_a_manifest_that_names_a_file_outside_is_refused(sealed: Path, form: str) -> None:
    (sealed.parent / "outside").write_bytes(b"abc")
    name = form.format("outside", parent=sealed.parent)
    manifest = read_json(sealed / MANIFEST)
    manifest["files"][name] = manifest["files"]["a.bin"]
    write_json(sealed / MANIFEST, manifest)
    with raises(DataError, sealed / MANIFEST, "damaged", name):
        open_sealed(sealed, "thing", 3)
