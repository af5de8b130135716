"""Tensors in a safetensors file; a disk that is full is an OSError, as elsewhere."""

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write the file."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))  # as Rust says it
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from None
