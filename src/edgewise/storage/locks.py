"""Advisory locks, which the system releases when their process ends, however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edgewise.errors import EdgewiseError


def require_locks() -> None:
    """Raise EdgewiseError on systems without file locks, where edgewise can only read."""
    try:
        import fcntl  # noqa: F401
    except ModuleNotFoundError:
        raise EdgewiseError(
            "writing files needs file locks, which Linux and macOS have and this system does not: "
            "here edgewise can only read, translate and serve"
        ) from None


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder exclusively; return False if another process has locked it."""
    require_locks()
    # Imported here: Windows has no such module, and reading needs no lock.
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        message = (
            f"the file system does not support file locks ({error.strerror}): write to a local one"
        )
        raise OSError(error.errno, message) from None
    return True


def open_locked(path: Path) -> BinaryIO | None:
    """Open a lock file, which is made if needed; return None if another process has locked it.

    A link is not followed, and nothing is emptied: the file may be somebody's.
    """
    require_locks()
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    try:
        if try_lock(descriptor):
            return os.fdopen(descriptor, "r+b")
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, error.strerror, str(path)) from None
    os.close(descriptor)
    return None


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a file or folder; yield False if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)
