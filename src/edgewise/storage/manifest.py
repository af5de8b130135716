"""Sealed folders: a manifest names the kind of a folder, and size and sha256 of each file in it.

Only listed files are read, only regular ones inside the folder, and each is verified when it is
read. `README.md` and `generation_config.json` are for people to edit: they are listed without a
hash, and a hash that an older version wrote is not looked at.
"""

import hashlib
import os
import re
import stat
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

from edgewise.errors import DataError, SettingError
from edgewise.storage.files import (
    LARGEST_JSON,
    kind_of_file,
    open_regular,
    parse_json,
    read_at_most,
    read_json,
    read_regular,
    sha256,
)
from edgewise.storage.replace import write_json

MANIFEST = "manifest.json"
EDITABLE = frozenset(("README.md", "generation_config.json"))
LONGEST_NAME = 1000  # bytes
_SHA256 = re.compile(r"[0-9a-f]{64}")
Entry = tuple[int, str] | None  # bytes and sha256; None: to be edited


def seal(folder: Path, kind: str, version: int) -> None:
    """Write the manifest of a folder that is complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = {
        name: {} if name in EDITABLE else {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for name, path in ((path.relative_to(folder).as_posix(), path) for path in files)
    }
    write_json(folder / MANIFEST, {"kind": kind, "version": version, "files": listed})


def kind_of(folder: Path) -> str | None:
    """Return the kind that a folder's manifest names; None if there is none that can be read."""
    try:
        found = read_json(folder / MANIFEST)["kind"]
    except (OSError, DataError, LookupError, TypeError):
        return None
    return found if isinstance(found, str) else None


def open_sealed(
    folder: Path, kind: str | None = None, version: int | None = None
) -> "SealedFolder":
    """Open a folder of this kind, or of any; DataError unless all files are there with their sizes.

    The content of a file is verified when it is read, by the methods of what is returned.
    """
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}; expected an edgewise {kind or 'folder'}")
    manifest = folder / MANIFEST
    if not _exists(manifest):
        raise DataError(f"{folder} is not an edgewise {kind or 'folder'}: it has no {MANIFEST}")
    content = parse_json(read_regular(regular_inside(folder, MANIFEST), LARGEST_JSON), manifest)
    try:
        found, of_version, files = content["kind"], content["version"], content["files"]
    except (KeyError, TypeError):
        files = None
    if not isinstance(files, dict):
        raise DataError(f"{manifest} is damaged: it must have kind, version and files")
    if kind is not None and found != kind:
        raise DataError(f"{folder} must be an edgewise {kind}; it is an edgewise {found!s:.80}")
    if version is not None and of_version != version:
        raise DataError(
            f"{folder} has version {of_version!s:.80} of the format '{kind}'; this edgewise reads "
            f"version {version}"
        )
    return SealedFolder(folder, {name: _entry(manifest, name, files[name]) for name in files})


class SealedFolder:
    """The listed files of a folder, for reading."""

    def __init__(self, path: Path, entries: dict[str, Entry]) -> None:
        self.path, self._entries = path, entries
        self._read: dict[Path, tuple[int, ...]] = {}
        for name, entry in entries.items():
            found = self._path(name).stat()
            if entry is not None and found.st_size != entry[0]:
                raise DataError(
                    f"{path} is damaged: {name} has {found.st_size} bytes instead of {entry[0]}"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> list[str]:
        return sorted(self._entries)

    def digest(self, name: str) -> str:
        """Return the sha256 that the manifest lists."""
        entry = self._entries[name]
        if entry is None:
            raise DataError(f"{self.path / MANIFEST} is damaged: it has no sha256 for {name}")
        return entry[1]

    def read(self, name: str, limit: int = LARGEST_JSON) -> bytes:
        """Return the verified content of a file; DataError if it has more than `limit` bytes."""
        with self._open(name) as file:
            content = read_at_most(file, limit, self.path / name)
        self._verify(name, hashlib.sha256(content).hexdigest())
        return content

    def json(self, name: str) -> Any:
        """Return the verified content of a JSON file."""
        return parse_json(self.read(name), self.path / name)

    def file(self, name: str) -> Path:
        """Return the path of a file whose content is verified, for libraries that take a path.

        Call `require_unchanged` after they have read it.
        """
        path = self.path / name
        with self._open(name) as file:
            version = _version(os.fstat(file.fileno()))
            if self._read.get(path) != version:  # else it was verified before
                self._verify(name, hashlib.file_digest(file, "sha256").hexdigest())
                self._read[path] = version
        return path

    def located(self, name: str) -> Path:
        """Return the path of a listed file whose content is not verified."""
        self._open(name).close()
        return self.path / name

    def verify(self) -> None:
        """Verify the content of every file."""
        for name in self._entries:
            self.file(name)

    def require_unchanged(self) -> None:
        """Raise DataError if a file that `file` returned has been replaced or written since."""
        for path, version in self._read.items():
            try:
                unchanged = _version(path.stat()) == version
            except FileNotFoundError:
                unchanged = False
            if not unchanged:
                raise DataError(f"{path} was changed while it was being read: try again")

    def _open(self, name: str) -> BufferedReader:
        if name not in self._entries:
            raise DataError(
                f"{self.path} is damaged: {MANIFEST} must list every file, and does not list {name}"
            )
        return open_regular(self._path(name))

    def _verify(self, name: str, digest: str) -> None:
        entry = self._entries[name]
        if entry is not None and digest != entry[1]:
            raise DataError(
                f"{self.path} is damaged: the content of {name} is not what was written"
            )

    def _path(self, name: str) -> Path:
        if not _exists(self.path / name):
            raise DataError(f"{self.path} is damaged: {name} is missing")
        return regular_inside(self.path, name)


def _exists(path: Path) -> bool:
    """Whether there is something; PermissionError if that cannot be known."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def regular_inside(folder: Path, name: str) -> Path:
    """Return the path of a regular file; DataError if it is none, or a link that leads outside."""
    path, real = folder / name, Path(os.path.realpath(folder / name))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise DataError(
            f"{name} in {folder} is a link to a file outside, {real}, which is not read: copy the "
            "file into the folder"
        )
    if not real.is_file():
        kind = kind_of_file(real.stat().st_mode) if real.exists() else "link to nothing"
        raise DataError(f"{path} must be a regular file; it is a {kind}")
    return real


def _entry(manifest: Path, name: str, entry: object) -> Entry:
    """Check an entry of a manifest."""
    parts = PurePosixPath(name).parts
    plain = parts and ".." not in parts and "/".join(parts) == name and "\0" not in name
    try:
        plain = plain and len(os.fsencode(name)) <= LONGEST_NAME
    except UnicodeEncodeError:
        plain = False
    if not plain or name.startswith("/"):
        raise DataError(
            f"{manifest} is damaged: the name of a file is not a plain relative path, {name!r:.200}"
        )
    if name in EDITABLE and isinstance(entry, dict):
        return None
    size, digest = (
        (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    )
    if type(size) is not int or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise DataError(f"{manifest} is damaged: it has no size and sha256 for {name!r:.200}")
    return size, digest


def _version(found: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a file is replaced or written."""
    assert stat.S_ISREG(found.st_mode)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
