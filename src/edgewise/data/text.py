"""Lines of text files: plain, gzip, or one column of tab-separated values."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgewise.errors import DataError, SettingError

# Of a longer line no more than this and one block is held, so that no file can fill the memory.
LONGEST_LINE = 1 << 20
_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
# How files begin that are not UTF-8 text: what they are, and a program that makes text of them.
_OTHERS = (
    (_GZIP, "gzip", "gzip -dc"),
    (b"PK\x03\x04", "a zip archive", "unzip -p"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\xfd7zXZ", "xz", "xz -dc"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
)
_LONGEST_START = 5
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


@dataclass(frozen=True)
class TextFile:
    """A file of one sentence a line; with a column, that column of tab-separated values."""

    path: Path
    column: int | None = None  # the first is 1

    @classmethod
    def parse(cls, name: str) -> "TextFile":
        """`a.en`, `a.en.gz`, or `a.tsv:2` for the second column."""
        path, colon, column = name.rpartition(":")
        if colon and column.isdecimal() and not Path(name).exists():
            if int(column) < 1:
                raise SettingError(f"columns count from 1; got {name}")
            return cls(_readable(Path(path)), int(column))
        file = _readable(Path(name))
        if file.name.removesuffix(".gz").endswith(".tsv"):
            raise SettingError(f"{name} needs a column, as in {name}:2 for the second")
        return cls(file)

    def __str__(self) -> str:
        return str(self.path) if self.column is None else f"{self.path}:{self.column}"

    def lines(self) -> Iterator[bytes | None]:
        r"""Each line without its end (\n or \r\n); None where it lacks the column."""
        for line in self._whole_lines():
            if len(line) >= LONGEST_LINE:  # it may be cut: as a whole it is too long
                yield line
                continue
            text = line.removesuffix(b"\r")
            if self.column is None:
                yield text
            else:
                cells = text.split(b"\t")
                yield cells[self.column - 1] if len(cells) >= self.column else None

    def count(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """How many lines there are; the last one needs no end. When stopped: fewer."""
        count, last = 0, b"\n"
        for block in self._blocks():
            if stopped():
                break
            count += block.count(b"\n")
            last = block[-1:] or last
        return count + (last != b"\n")

    def _whole_lines(self) -> Iterator[bytes]:
        rest = b""
        for block in self._blocks():
            *whole, rest = (rest + block).split(b"\n")
            yield from whole
            rest = rest[:LONGEST_LINE]
        if rest:
            yield rest

    def _blocks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            packed = file.read(2) == _GZIP
        try:
            with gzip.open(self.path) if packed else self.path.open("rb") as file:
                yield file.read(_BLOCK).removeprefix(BOM)
                while block := file.read(_BLOCK):
                    yield block
        except _DAMAGE:
            raise DataError(f"{self.path} is a gzip file that is damaged or cut off") from None


def describe_foreign(start: bytes) -> str | None:
    """Return what a file is that begins so, and how to make text of it; None if it may be text."""
    for signature, kind, program in _OTHERS:
        if start.startswith(signature):
            return f"{kind}: convert it first, as with {program}"
    return None


def _readable(path: Path) -> Path:
    if not path.exists():
        raise SettingError(f"there is no file {path}")
    if not path.is_file():
        raise SettingError(f"{path} must be a plain or gzip file, no folder or pipe")
    with path.open("rb") as file:
        start, within = file.read(_LONGEST_START), ""
    if start.startswith(_GZIP):
        with suppress(*_DAMAGE), gzip.open(path) as file:  # damage is told when all is read
            start, within = file.read(_LONGEST_START), "gzip of "
    if kind := describe_foreign(start):
        raise DataError(f"{path} must be UTF-8 text, plain or gzip; it is {within}{kind}")
    return path
