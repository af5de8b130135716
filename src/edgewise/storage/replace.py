"""Files and folders that appear complete or not at all.

A writer fills a new file or folder beside its target, then renames it. Until then the target is
unchanged. The names of what it makes are random and stand in a journal beside the target, which is
locked while the writer lives. What a killed writer left behind is found by its journal, by the next
writer of the same target or by `recover`; nothing else is ever removed. A journal stays as long as
something that it lists does.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from edgewise.errors import DataError, SettingError
from edgewise.storage.files import read_json
from edgewise.storage.locks import locked, open_locked, require_locks

JOURNAL = ".edgewise-journal-"
# What becomes the target; what was the target; a folder of what was beside it; what is removed.
_NEW, _OLD, _ASIDE, _REMOVED = (f".edgewise-{kind}-" for kind in ("new", "old", "aside", "removed"))
_NAME = re.compile(r"\.edgewise-(new|old|aside|removed)-[0-9a-f]{16}")


def resolved(path: Path) -> Path:
    """Follow links, also of a path that is not there; what a link points to is what is written."""
    return Path(os.path.realpath(path))


@contextmanager
def replacing(*targets: Path) -> Iterator[list[Path]]:
    """Yield a temporary path beside each target; what is made there replaces the target.

    All are flushed to the disk before the first is renamed. A folder that is there is moved away
    just before and removed after it. After a kill between the two, the next writer or `recover`
    puts it back. If something else appears at a target in the meantime, it stays, and SettingError
    is raised.
    """
    with ExitStack() as stack:
        made = []
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_journal(target))
            new, old = map(target.with_name, _record(target, _NEW, _OLD))
            made.append((target, new, old, _identity(target)))
        yield [new for _, new, _, _ in made]
        for _, new, _, _ in made:
            _flush_tree(new)
        for target, new, old, before in made:
            if _identity(target) != before:
                raise SettingError(
                    f"{target} was changed by another process, and the new content is discarded: "
                    "run the command again"
                )
            if _is_folder(new) and before is not None:
                target.rename(old)
            new.replace(target)
        for parent in {target.parent for target in targets}:
            _flush(parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which becomes `path` in the end; see `replacing`."""
    with replacing(resolved(path)) as (new,):
        new.mkdir()
        yield new


@contextmanager
def output_files(*paths: Path) -> Iterator[list[BinaryIO]]:
    """Open files that replace the given paths together when the block ends.

    Links are followed, modes are kept. What is there and not a regular file, such as a device or a
    FIFO, is written into.
    """
    modes = [path.stat().st_mode if path.exists() else None for path in paths]
    regular = [mode is None or stat.S_ISREG(mode) for mode in modes]
    with ExitStack() as stack:
        replaced = [resolved(path) for path, is_file in zip(paths, regular, strict=True) if is_file]
        new = iter(stack.enter_context(replacing(*replaced)))
        with ExitStack() as opened:  # closed before they are renamed
            files: list[BinaryIO] = []
            for path, mode, is_file in zip(paths, modes, regular, strict=True):
                # Not resolved if it is a pipe: /dev/stdout leads to nothing that can be opened.
                file = next(new).open("xb") if is_file else path.open("wb")
                opened.callback(_close, file, path)
                files.append(file)
                if is_file and mode is not None:
                    os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield files


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block ends; see `output_files`."""
    with output_files(path) as (file,):
        yield file


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically; see `output_files`."""
    with output_file(path) as file, _reported(path):
        # surrogatepass: names of files need not be UTF-8.
        file.write(text.encode("utf-8", "surrogatepass"))
        file.flush()


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file atomically; see `output_files`."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _close(file: BinaryIO, path: Path) -> None:
    with _reported(path):
        file.close()


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Report a FIFO without a reader as an error of the file.

    BrokenPipeError ends a command quietly, as a reader of standard output that has enough does.
    """
    try:
        yield
    except BrokenPipeError:
        raise OSError(errno.EIO, "the reader has closed it", str(path)) from None


@contextmanager
def set_aside(target: Path, others: Sequence[str]) -> Iterator[None]:
    """Move a folder and others beside it away while new ones are made; in the end remove them.

    When all new ones are there, the block must make `target`, as the last one. Without it, after an
    error or a kill, the old ones are put back.
    """
    with _journal(target):
        (aside,) = map(target.with_name, _record(target, _ASIDE))
        aside.mkdir()
        for path in (target, *map(target.with_name, others)):
            if os.path.lexists(path):
                path.rename(aside / path.name)
        yield


def remove(path: Path) -> None:
    """Remove a folder so that after a kill it is complete or gone."""
    with _journal(path):
        (removed,) = map(path.with_name, _record(path, _REMOVED))
        path.rename(removed)


def restore(target: Path) -> None:
    """Restore a target that a killed writer had moved away; see `replacing`.

    Raise SettingError if another process is writing it.
    """
    if _journal_path(target).is_file():
        with _journal(target):  # cleans up
            pass


def recover(folder: Path) -> None:
    """Clean up what killed writers left in a folder, by their journals.

    Raise SettingError if one of them is still at work.
    """
    for journal in folder.glob(f"{JOURNAL}{16 * '[0-9a-f]'}"):
        try:
            name, _ = _recorded(journal)
        except FileNotFoundError:  # its writer has just ended
            continue
        except DataError:
            _remove_empty(journal)
            continue
        restore(folder / name)


@contextmanager
def _journal(target: Path) -> Iterator[None]:
    """Lock the journal of a target; remove the files it lists, before the block and after it."""
    require_locks()  # before a journal is made
    path = _journal_path(target)
    while True:
        file = open_locked(path)
        if file is None:
            raise SettingError(f"another process is writing {target}: wait for it to end")
        with file:
            found = os.fstat(file.fileno())
            # A writer that has ended meanwhile removed the file that was opened here.
            if _identity(path) != _identity_of(found):
                continue
            if found.st_size and not _clean_up(target, _recorded(path)[1]):
                raise SettingError(
                    f"{path} lists files that an interrupted command left and that cannot be "
                    "removed: check them, then move them and this file away"
                )
            try:
                yield
            finally:
                # If something is left, the journal stays, and the next writer tries again.
                if not path.exists() or not path.stat().st_size or _clean_up(*_listed(path)):
                    path.unlink(missing_ok=True)
            return


def _listed(journal: Path) -> tuple[Path, list[str]]:
    name, names = _recorded(journal)
    return journal.with_name(name), names


def _remove_empty(journal: Path) -> None:
    """Remove a journal whose writer was killed before it made anything; others stay."""
    if not journal.is_file() or journal.stat().st_size:
        return
    with locked(journal) as free:
        if free and not journal.stat().st_size:
            journal.unlink()


def _journal_path(target: Path) -> Path:
    """Beside the target; of a fixed length, since names of files have a greatest one."""
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()
    return target.with_name(f"{JOURNAL}{digest[:16]}")


def _record(target: Path, *kinds: str) -> list[str]:
    """Return a random name of each kind, after they are noted in the journal, which is locked."""
    names = [f"{kind}{secrets.token_hex(8)}" for kind in kinds]
    with _journal_path(target).open("r+b") as file:
        content = {"target": os.fsencode(target.name).hex(), "names": names}
        file.write(json.dumps(content).encode())
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    return names


def _recorded(journal: Path) -> tuple[str, list[str]]:
    """Return the name of the target and what was made for it; DataError if it is no journal."""
    try:
        content = read_json(journal)
        target = os.fsdecode(bytes.fromhex(content["target"]))
        names = [name for name in content["names"] if _NAME.fullmatch(name)]
        if names and _journal_path(journal.with_name(target)) == journal:
            return target, names
    except (DataError, KeyError, TypeError, ValueError):
        pass
    raise DataError(f"{journal} is not a journal of edgewise: move it away")


def _clean_up(target: Path, names: list[str]) -> bool:
    """Restore the old content if the target is missing, and remove the other listed files.

    Return whether nothing that is listed is left.
    """
    paths = list(map(target.with_name, names))
    kinds = {path.name.rpartition("-")[0] + "-": path for path in paths}
    new, old, aside = (kinds.get(kind) for kind in (_NEW, _OLD, _ASIDE))
    if not os.path.lexists(target):
        if old is not None and old.exists():
            old.rename(target)
        if aside is not None and aside.exists():
            _put_back(aside, target)
    elif old is not None and new is not None and old.exists() and os.path.lexists(new):
        return False  # another process has made the target: neither may be removed
    for path in paths:
        _delete(path)
    return not any(map(os.path.lexists, paths))


def _put_back(aside: Path, target: Path) -> None:
    """Move what was set aside back, in place of what is new; the target last."""
    for path in sorted(aside.iterdir(), key=lambda path: path.name == target.name):
        _delete(target.with_name(path.name))
        path.rename(target.with_name(path.name))


def _delete(path: Path) -> None:
    if _is_folder(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        return _identity_of(path.lstat())
    except FileNotFoundError:
        return None


def _identity_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _flush_tree(path: Path) -> None:
    """Flush a file, or a folder and all files in it, to the disk."""
    if path.is_symlink():
        return
    for folder, _, names in os.walk(path):
        for name in names:
            _flush(Path(folder, name))
        _flush(Path(folder))
    if not path.is_dir():
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
