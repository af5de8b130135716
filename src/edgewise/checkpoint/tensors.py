"""Tensors in safetensors files: their names, shapes and types are checked before they are read."""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgewise.errors import DataError
from edgewise.storage import open_regular, utf8_path

Shapes = Mapping[str, tuple[int, ...]]


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write the file; a full disk is an OSError, as elsewhere."""
    try:
        with utf8_path(path.parent) as folder:
            save_file(dict(tensors), Path(folder, path.name))
        # It makes files that only their owner can read.
        path.chmod(path.parent.stat().st_mode & 0o666)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))  # as Rust says it
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def tensor_names(path: Path) -> list[str]:
    """Return the names of a file's tensors, without reading them."""
    with _opened(path) as file:
        return list(file.keys())


def require_tensors(path: Path, shapes: Shapes) -> None:
    """Raise DataError unless a file has just these tensors, in float32; nothing is read."""
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        found = {name: tuple(part.get_shape()) for name, part in slices.items()}
        types = {name: part.get_dtype() for name, part in slices.items()}
    require_shapes(str(path), found, shapes)
    for name, dtype in types.items():
        if dtype != "F32":
            raise DataError(
                f"{path} must have tensors of type F32; {name} is of type {dtype}: convert it to "
                "float32"
            )


def require_shapes(name: str, found: Shapes, expected: Shapes) -> None:
    """Raise DataError unless these are just the parameters that a model has."""
    if found == expected:
        return
    key = next(k for k in sorted({*expected, *found}) if expected.get(k) != found.get(k))
    shown = [list(shapes[key]) if key in shapes else "missing" for shapes in (found, expected)]
    raise DataError(
        f"{name} must have the parameters of the model; {key} is {shown[0]} there and {shown[1]} "
        "in the model"
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; its tensors, unlike their names, are read when they are asked for."""
    open_regular(path).close()  # its errors name the file
    try:
        with utf8_path(path) as name, safe_open(name, framework="pt") as file:
            yield file
    except SafetensorError:
        raise DataError(f"{path} is not a safetensors file, or damaged") from None
