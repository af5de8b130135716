"""A corpus of the catalogue as text files that `edgewise prepare` reads."""

import gzip
import os
import posixpath
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import quote, urlsplit

from edgewise.data.catalogue import PARTS, File, PublicBitext, PublicCorpus, Text
from edgewise.data.download import PATIENT, MissingError, Patience, Progress, check, download
from edgewise.errors import DataError, SettingError
from edgewise.storage import locked, output_files, recover

_BLOCK = 1 << 20
_DAMAGE = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError)
_SEGMENT = re.compile(r"\s*<seg\b[^>]*>(.*)</seg>")
# The files call themselves SGML, and mean these if they have any; a bare & stays what it is.
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&amp;": "&"}


def cache_folder() -> Path:
    """The folder that corpora are kept in: $XDG_CACHE_HOME/edgewise, or ~/.cache/edgewise."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # Relative paths are to be ignored, says the specification.
    return (base if base.is_absolute() else Path.home() / ".cache") / "edgewise"


def is_ready(bitext: PublicBitext, folder: Path) -> bool:
    """Whether the folder of a corpus has all files of a bitext; they appear when they are whole."""
    return all((folder / name).is_file() for name in bitext.files.values())


def fetch(
    corpus: PublicCorpus,
    folder: Path,
    *,
    parts: Collection[str] = PARTS,
    mirror: str | None = None,
    patience: Patience = PATIENT,
    progress: Progress = lambda stage, done, total: None,
) -> Path:
    """Make parts of a corpus ready in `folder`, and return its own folder there.

    Files come from their public addresses or from a mirror, a folder or an address that has them
    at their paths. What is ready already is left as it is.
    """
    out = folder / corpus.name
    shelf = _Shelf(folder / "downloads", mirror, patience, progress)
    wanted = [bitext for bitext in corpus.bitexts if bitext.part in parts]
    if all(is_ready(bitext, out) for bitext in wanted):
        return out
    out.mkdir(parents=True, exist_ok=True)
    missing: dict[str, str] = {}
    with locked(folder) as free:
        if not free:
            raise SettingError(
                f"another process is fetching into {folder}: wait for it, or choose another --dir"
            )
        recover(out)
        for bitext in wanted:
            if not is_ready(bitext, out):
                try:
                    _make(bitext, out, shelf)
                except MissingError as error:
                    missing[bitext.name] = str(error)
    if missing:
        ready = [bitext.name for bitext in wanted if is_ready(bitext, out)]
        lines = [f"{corpus.name} is not complete; ready in {out}: {', '.join(ready) or 'nothing'}"]
        lines += [f"  {bitext}: there is no {place}" for bitext, place in missing.items()]
        lines += ["try another --mirror" if mirror is None else "without --mirror it is fetched"]
        raise SettingError("\n".join(lines))
    return out


class _Shelf:
    """The files of the catalogue: those kept from before, those of a folder, or fetched now."""

    def __init__(
        self, kept: Path, mirror: str | None, patience: Patience, progress: Progress
    ) -> None:
        self.kept, self.patience, self.progress = kept, patience, progress
        self.folder = self.host = None
        self._checked: set[Path] = set()  # in this command
        if mirror is not None and "://" in mirror:
            if urlsplit(mirror).scheme not in ("http", "https"):
                raise SettingError(f"--mirror must be a folder, http:// or https://; got {mirror}")
            self.host = mirror.rstrip("/")
        elif mirror is not None:
            self.folder = Path(mirror)
            if not self.folder.is_dir():
                raise SettingError(f"--mirror must be a folder or an address; got {mirror}")

    def has_place_for(self, file: File) -> bool:
        return file.address is not None or self.folder is not None or self.host is not None

    def get(self, file: File) -> Path:
        """The file, its hash checked; MissingError if it is not there."""
        kept = self.kept / file.path
        if kept in self._checked or self._is_right(kept, file):
            self._checked.add(kept)
            return kept
        if self.folder is not None:
            path = self.folder / file.path
            if not path.is_file():
                raise MissingError(str(path))
            self.progress(f"checking {path}", 0, 0)
            check(path, file, str(path))
            return path
        address = f"{self.host}/{quote(file.path)}" if self.host is not None else file.address
        assert address is not None
        if os.path.lexists(kept):
            raise DataError(
                f"{kept} is damaged, or another file: expected {' or '.join(file.hashes)} (remove "
                "it, so that it can be fetched)"
            )
        download(file, address, kept, patience=self.patience, progress=self.progress)
        self._checked.add(kept)
        return kept

    def _is_right(self, kept: Path, file: File) -> bool:
        """Whether a file was fetched before and is as it was."""
        if not kept.is_file():
            return False
        self.progress(f"checking {kept}", 0, 0)
        try:
            check(kept, file, str(kept))
        except DataError:
            return False
        return True


def _make(bitext: PublicBitext, out: Path, shelf: _Shelf) -> None:
    """Write the files of a bitext, if all are there and fit each other."""
    for path in (out / name for name in bitext.files.values()):
        if os.path.lexists(path):
            raise SettingError(
                f"{path} exists, and that of the other language does not: move it away, so that "
                "both can be fetched"
            )
    paths, way = _first_way(bitext, shelf)
    with output_files(*(out / name for name in bitext.files.values())) as files:
        new = dict(zip(bitext.files, files, strict=True))
        lines: dict[str, int] = {}
        for file, path in paths.items():
            texts = {language: text for language, text in way.items() if text.file == file}
            lines |= _unpack(path, texts, new, shelf.progress)
        # As many as the catalogue says is not asked for: the hashes are right, it may be wrong.
        if len(set(lines.values())) > 1:
            counts = ", ".join(f"{count:,} ({language})" for language, count in lines.items())
            raise DataError(
                f"{bitext.name} must have as many lines in one language as in the other; got "
                f"{counts}"
            )


def _first_way(bitext: PublicBitext, shelf: _Shelf) -> tuple[dict[File, Path], Mapping[str, Text]]:
    tried = []
    for way in bitext.ways:
        files = {text.file for text in way.values()}
        if all(shelf.has_place_for(file) for file in files):
            try:
                return {text.file: shelf.get(text.file) for text in way.values()}, way
            except MissingError as error:
                tried.append(str(error))
    raise MissingError(" or ".join(tried))


def _unpack(
    path: Path, texts: Mapping[str, Text], new: Mapping[str, BinaryIO], progress: Progress
) -> dict[str, int]:
    """Write what a file has of a bitext, as gzip; how many lines there are, by language."""
    size = path.stat().st_size
    lines: dict[str, int] = {}
    try:
        with path.open("rb") as raw:

            def told() -> None:
                progress(f"unpacking {path.name}", raw.tell(), size)

            members = {text.member: language for language, text in texts.items()}
            if None in members:
                blocks = _blocks(raw, path.name, told)
                return {language: _write(blocks, new[language]) for language in texts}
            # As a stream, front to back: what an archive says of places is never followed.
            with tarfile.open(fileobj=raw, mode="r|*") as archive:
                for entry in archive:
                    name = posixpath.normpath(entry.name)
                    content = archive.extractfile(entry) if entry.isreg() else None
                    if content is not None and name in members:
                        language, file = members.pop(name), cast(BufferedIOBase, content)
                        lines[language] = _write(_blocks(file, name, told), new[language])
                        if not members:
                            break
    except _DAMAGE as error:
        raise DataError(f"{path} is damaged: {error}") from None
    if members:
        raise DataError(f"{path} must have {' and '.join(map(str, members))}; it has not")
    return lines


def _blocks(file: BufferedIOBase, name: str, told: Callable[[], None]) -> Iterator[bytes]:
    """The text of a file: unpacked if it is gzip, of SGML the segments, a line each."""
    if name.endswith(".gz"):
        with gzip.open(file) as text:
            yield from _blocks(text, name.removesuffix(".gz"), told)
    elif name.endswith(".sgm"):
        for line in file:
            if segment := _SEGMENT.match(line.decode()):
                yield " ".join(_plain(segment[1]).split()).encode() + b"\n"
    else:
        while block := file.read(_BLOCK):
            told()
            yield block


def _plain(text: str) -> str:
    for entity, character in _ENTITIES.items():
        text = text.replace(entity, character)
    return text


def _write(blocks: Iterable[bytes], file: BinaryIO) -> int:
    """Write a gzip file that is the same each time; return how many lines it has."""
    lines, last = 0, b"\n"
    with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed:
        for block in blocks:
            packed.write(block)
            lines += block.count(b"\n")
            last = block[-1:] or last
        if last != b"\n":
            packed.write(b"\n")
            lines += 1
    return lines
