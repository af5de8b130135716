"""All that lies below a folder, so that a test can say that nothing was changed."""

import os
import stat
from pathlib import Path


def everything(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return, by relative path, the kind and mode of each entry, and its content or link target.

    Hidden entries and empty folders are included; links are not followed.
    """
    found: dict[str, tuple[object, ...]] = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            content: object = None
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = path.read_bytes()
            kind = stat.S_IFMT(mode)
            found[path.relative_to(folder).as_posix()] = (kind, stat.S_IMODE(mode), content)
    return found


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return, by relative path, the content of each file; None for a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
