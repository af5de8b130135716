"""What a command may write to: the one check that all commands share.

An existing target is an error, unless `--overwrite` is given and it is a regular file, or a folder
that has our manifest and nothing that we did not write.
"""

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from edgewise.errors import DataError, SettingError
from edgewise.storage.files import kind_of_file, read_json
from edgewise.storage.manifest import MANIFEST
from edgewise.storage.replace import recover, resolved, restore

EXISTS = "{} exists already (--overwrite replaces it)"


def require_free_folder(path: Path, kind: str, *, overwrite: bool) -> None:
    """Raise SettingError unless a folder of this kind may be written to `path`."""
    _require_parent(path)
    _require_outside_checkpoints(path)
    restore(resolved(path))
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    listed = _listed(path, kind)
    if listed is None:
        raise SettingError(
            f"{path} exists and is not an edgewise {kind}, and --overwrite replaces nothing else: "
            "choose another --out, or remove it"
        )
    if not overwrite:
        raise SettingError(EXISTS.format(path))
    recover(path)
    folders = {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents}
    for folder, inner_folders, files in os.walk(path):
        for name in (*inner_folders, *files):
            inner = Path(folder, name).relative_to(path)
            is_folder = name in inner_folders and not Path(folder, name).is_symlink()
            if inner.as_posix() not in (folders if is_folder else listed):
                raise SettingError(
                    f"{path} has something that edgewise did not write, {inner}, which --overwrite "
                    "would remove: move it away, or choose another --out"
                )


def require_free_files(
    targets: Mapping[str, Path | None], *, overwrite: bool, used: Mapping[str, Path] | None = None
) -> None:
    """Raise SettingError unless files may be written.

    targets: by the options that name them; None where an option is not given.
    used: files and folders that the command reads or writes otherwise, by what messages call
        them. No target may be one of these, or in one.
    """
    seen: dict[str, Path] = {}
    for option, path in targets.items():
        if path is None:
            continue
        mode = path.stat().st_mode if path.exists() else stat.S_IFREG
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            raise SettingError(
                f"{option} must be a file to write; {path} is a {kind_of_file(mode)}"
            )
        if not stat.S_ISREG(mode):  # it is written into, and stays what it is
            continue
        _require_parent(path)
        if path.exists() and not overwrite:
            raise SettingError(EXISTS.format(path))
        for name, other_path in (used or {}).items():
            if _same(path, other_path):
                raise SettingError(
                    f"{option} and {name} are the same file, {path}: choose another file"
                )
            if resolved(path).is_relative_to(resolved(other_path)):
                raise SettingError(
                    f"{option} must not be inside {name}, which the command reads; got {path}"
                )
        for other, taken in seen.items():
            if _same(path, taken):
                raise SettingError(f"{other} and {option} must be two files; got {path} for both")
        seen[option] = path


def _listed(path: Path, kind: str) -> set[str] | None:
    """Return the files that the manifest of a folder of this kind lists; None if it has none."""
    try:
        content = read_json(path / MANIFEST)
        return {MANIFEST, *map(str, content["files"])} if content["kind"] == kind else None
    except (OSError, DataError, LookupError, TypeError):
        return None


def _same(one: Path, other: Path) -> bool:
    if resolved(one) == resolved(other):
        return True
    return one.exists() and other.exists() and one.samefile(other)


def _require_parent(path: Path) -> None:
    """Raise OSError before the work, not after it, if nothing can be written to `path`."""
    real = resolved(path)
    parent = real.parent
    while not os.path.lexists(parent):
        parent = parent.parent
    code = 0
    if real.is_symlink():
        code = errno.ELOOP
    elif not parent.is_dir():
        code = errno.ENOTDIR
    elif not os.access(parent, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code:
        raise OSError(code, os.strerror(code), str(path if code == errno.ELOOP else parent))


def _require_outside_checkpoints(path: Path) -> None:
    """Raise SettingError for a target among the checkpoints of a run, also through a link."""
    real = resolved(path)
    for folder in real.parents:
        if folder.name == "checkpoints" and (folder.parent / "run.json").is_file():
            raise SettingError(
                f"{path} is inside the checkpoints of the training run {folder.parent}, which are "
                "needed to continue it: choose another --out"
            )
