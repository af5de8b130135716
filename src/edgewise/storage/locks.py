"""Advisory locks, which the system releases when their process ends, however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgewise.errors import EdgewiseError


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder exclusively; return False if another process has locked it."""
    try:
        # Imported here: Windows has no such module, and reading needs no lock.
        import fcntl
    except ModuleNotFoundError:
        raise EdgewiseError(
            "edgewise writes files on systems with file locks only (Linux, macOS); here it can read"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a file or folder; yield False if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)
