"""Names of files for libraries that accept UTF-8 only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def utf8_path(path: Path) -> Iterator[str]:
    """Yield a name of an existing file or folder that is UTF-8; it holds within the context."""
    try:
        name = str(path)
        name.encode()
    except UnicodeEncodeError:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield f"/dev/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        yield name
