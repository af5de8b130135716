"""Reading files that may be anything: only regular ones are opened, only so many bytes are read."""

import errno
import hashlib
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from edgewise.errors import DataError

MEBIBYTE = 1 << 20
# The largest JSON file of ours is a vocabulary: a quarter of a million pieces have 5 MB.
LARGEST_JSON = 64 * MEBIBYTE


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; DataError for a folder, FIFO, socket or device."""
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise DataError(f"{path} must be a regular file; it is a socket") from None
        raise
    file = os.fdopen(descriptor, "rb")
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise DataError(f"{path} must be a regular file; it is a {kind_of_file(mode)}")
    return file


def read_regular(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; DataError if it has more than `limit` bytes."""
    with open_regular(path) as file:
        return read_at_most(file, limit, path)


def read_at_most(file: BufferedReader, limit: int, path: Path) -> bytes:
    """Return the rest of a file; DataError if it has more than `limit` bytes."""
    size = os.fstat(file.fileno()).st_size
    content = file.read(min(size, limit) + 1)  # not more: Python allocates what is asked for
    if len(content) > limit:
        raise DataError(f"{path} must have at most {limit:,} bytes; it has more")
    return content


def read_json(path: Path) -> Any:
    """Return the parsed content of a JSON file; DataError if it is none."""
    return parse_json(read_regular(path, LARGEST_JSON), path)


def parse_json(content: bytes, path: Path) -> Any:
    """Parse JSON; DataError names the file and the place."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        reason = f"{error.msg.removesuffix(' at')} in line {error.lineno}, column {error.colno}"
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1} is not UTF-8"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError:  # Python's limit on the digits of an integer
        reason = "it has a number with too many digits"
    raise DataError(f"{path} is not JSON: {reason}")


def sha256(path: Path) -> str:
    """Return the hash of a file's bytes."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def kind_of_file(mode: int) -> str:
    """Name the kind of a file by its mode, such as `FIFO`."""
    kinds = (
        (stat.S_ISDIR, "folder"),
        (stat.S_ISFIFO, "FIFO"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISBLK, "block device"),
        (stat.S_ISCHR, "character device"),
    )
    return next((name for test, name in kinds if test(mode)), "file of another kind")
