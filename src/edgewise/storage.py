"""Files and folders that are written whole or not at all, and that can prove it."""

import fcntl
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgewise.errors import DataError, SettingError

MANIFEST = "manifest.json"
_BLOCK = 1 << 22


def sha256(path: Path) -> str:
    """The hash of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_text(path: Path, text: str) -> None:
    """A file, by way of a temporary one and one rename."""
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        # surrogatepass: names of files need not be UTF-8.
        with temporary.open("w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON of a file; DataError if it is none."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def require_free(path: Path, kind: str, *, overwrite: bool) -> None:
    """Raise SettingError if there is something that must not be replaced."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise SettingError(f"{path} exists already (--overwrite replaces it)")
    manifest = path / MANIFEST
    content = read_json(manifest) if manifest.is_file() else None
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise SettingError(
            f"{path} exists and is not an edgewise {kind}, which alone --overwrite replaces: "
            "choose another --out, or remove it"
        )


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill; at the end it is flushed to the disk and becomes `path`.

    Whatever happens before, `path` is as it was. What is there already is moved away just before
    that rename and removed after it; a kill between the two is made good by the next writer.
    """
    path = path.resolve()  # "." has no name, and what a link points to is what is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_up(path)
    temporary, old = (
        path.with_name(f".{path.name}.{what}-{os.getpid()}") for what in ("new", "old")
    )
    temporary.mkdir()
    try:
        with held(temporary):
            yield temporary
            for folder, _, names in os.walk(temporary):
                for name in names:
                    _flush(Path(folder, name))
                _flush(Path(folder))
            if path.exists():
                path.rename(old)
            temporary.rename(path)
            _flush(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def _clear_up(path: Path) -> None:
    """Remove what killed writers of this folder left; raise SettingError if one is at work."""
    name = glob.escape(path.name)
    for stale in path.parent.glob(f".{name}.new-*"):
        with held(stale) as free:
            if not free:
                raise SettingError(f"another process is writing {path}")
            shutil.rmtree(stale, ignore_errors=True)
    for old in path.parent.glob(f".{name}.old-*"):
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(path)


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Lock a folder, as a sign that its writer lives; False if somebody else has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(descriptor)


def seal(folder: Path, kind: str, version: int) -> None:
    """Write the manifest: what this folder is, and the size and sha256 of each of its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in files
    }
    write_json(folder / MANIFEST, {"kind": kind, "version": version, "files": listed})


def kind_of(folder: Path) -> str | None:
    """What a folder says that it is; None if it says nothing that can be read."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())["kind"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def check(folder: Path, kind: str, version: int) -> None:
    """Raise DataError unless the folder is of this kind and every file is as it was sealed."""
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}; expected an edgewise {kind}")
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise DataError(f"{folder} is not an edgewise {kind}: it has no {MANIFEST}")
    content = read_json(manifest)
    try:
        found, of_version, files = content["kind"], content["version"], content["files"]
        listed = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except (AttributeError, KeyError, TypeError):
        raise DataError(f"{manifest} is damaged: it names no kind, version or files") from None
    if found != kind:
        raise DataError(f"{folder} must be an edgewise {kind}; it is an edgewise {found}")
    if of_version != version:
        raise DataError(
            f"{folder} has version {of_version} of the format '{kind}'; this edgewise reads "
            f"version {version}"
        )
    for name, (size, digest) in listed.items():
        path = folder / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise DataError(f"{manifest} is damaged: it names a file outside of its folder, {name}")
        if not path.is_file():
            raise DataError(f"{folder} is damaged: {name} is missing")
        if path.stat().st_size != size:
            raise DataError(
                f"{folder} is damaged: {name} has {path.stat().st_size} bytes instead of {size}"
            )
        if sha256(path) != digest:
            raise DataError(f"{folder} is damaged: the content of {name} is not what was written")


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left in a folder; nobody else may be writing there."""
    for left in [*folder.glob(".*.new-*"), *folder.glob(".*.old-*")]:
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def remove(path: Path) -> None:
    """Remove a folder so that a kill leaves it whole or gone, never half."""
    trash = path.with_name(f".{path.name}.old-{os.getpid()}")
    path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
