"""Weights of other toolkits, read as data. No other file here opens what can hold code."""

import re
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from errno import EINVAL
from pathlib import Path

import torch
from torch import Tensor

from edgewise.errors import DataError

MOST_SHARED = 4  # names of one tensor, as of embeddings


def read_saved(path: Path) -> object:
    """What torch.save wrote: tensors, numbers, strings, what holds them, and an argparse.Namespace.

    A file that asks for anything else is refused when it does, before that is imported or called.
    """
    _require_stored(path)
    try:
        with torch.serialization.safe_globals([Namespace]):
            result: object = torch.load(path, map_location="cpu", weights_only=True)
    # A file that is no pickle, or half of one, fails in as many ways as there are instructions.
    except Exception as error:
        # EINVAL: one cut short is looked for before its beginning.
        if isinstance(error, OSError) and error.errno != EINVAL:
            raise
        if asked := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise DataError(
                f"{path} asks for {asked[1]}, which is not data: refused, nothing of it was run"
            ) from None
        raise DataError(f"{path} was not written by torch.save, or is damaged") from None
    return result


def _require_stored(path: Path) -> None:
    """Raise DataError for an archive that would be larger in memory than on the disk.

    torch.save compresses nothing; PyTorch would read a compressed entry of any size.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError):
        raise DataError(f"{path} was not written by torch.save, or is damaged") from None
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not stored or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise DataError(
            f"{path} has compressed entries, which torch.save does not write: load it and save it "
            "again"
        )


class ForeignWeights:
    """Tensors by name, each taken once: what is missing, misshapen or left over is told."""

    def __init__(self, tensors: object, file: Path) -> None:
        if not isinstance(tensors, Mapping):
            raise DataError(
                f"{file} must hold tensors by their names; it holds a {type(tensors).__name__}"
            )
        self.file = file
        self._tensors: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not _is_plain(tensor):
                kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise DataError(f"{file}: {name!r} must be a dense tensor of floats; it is {kind}")
            self._tensors[name] = tensor
        # Names may share memory, as tied embeddings do, and a stride of 0 repeats what is stored.
        size = sum(each.numel() * each.element_size() for each in self._tensors.values())
        if size > MOST_SHARED * max(file.stat().st_size, 1 << 20):
            raise DataError(
                f"{file} declares tensors of {size:,} bytes in all, more than {MOST_SHARED} times "
                "the size of the file: load it and save it again, with copies of the tensors"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def size(self, name: str, dimension: int) -> int:
        """One size of a tensor, which must be a matrix."""
        tensor = self._found(name)
        if tensor.dim() != 2:
            raise DataError(f"{self.file}: {name} must be a matrix; it is {list(tensor.shape)}")
        return tensor.shape[dimension]

    def layers(self, prefix: str) -> int:
        """How many numbers follow the prefix."""
        numbered = (re.match(re.escape(prefix) + r"(\d+)\.", name) for name in self._tensors)
        return len({match[1] for match in numbered if match})

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A copy, in float32."""
        tensor = self._found(name)
        if tensor.shape != shape:
            raise DataError(
                f"{self.file}: {name} must be {list(shape)}; it is {list(tensor.shape)}"
            )
        del self._tensors[name]
        return tensor.detach().to(torch.float32, copy=True).contiguous()

    def take_or_zeros(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The same of what a model may do without."""
        return self.take(name, shape) if name in self._tensors else torch.zeros(shape)

    def require_empty(self) -> None:
        """Raise DataError if something was not taken: the model has parts that ours has not."""
        if self._tensors:
            name, *others = sorted(self._tensors)
            more = f" and {len(others)} more" if others else ""
            raise DataError(f"{self.file} has {name!r}{more}, which no model of ours has")

    def _found(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise DataError(f"{self.file} has no {name}")
        return self._tensors[name]


def _is_plain(tensor: object) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
    )
