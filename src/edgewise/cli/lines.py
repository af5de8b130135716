"""Lines as they come: from a pipe as soon as they are there, from a file many at a time."""

import os
import select
from collections.abc import Iterator, Sequence

from edgewise.data.text import BOM, LONGEST_LINE, describe_foreign
from edgewise.errors import DataError

_BLOCK = 1 << 16
# Of one window: long lines must not fill the memory.
WINDOW_BYTES = 8 << 20


def windows(descriptor: int, first: int, most: int) -> Iterator[list[bytes]]:
    r"""Lines without their ends (\n, or \r\n), as many together as are there already.

    The first window has at most `first` lines, so that something comes out soon; each may be twice
    as large as the one before, up to `most`. Of a line of a megabyte or more only that is kept.
    DataError if it begins as a file that is not UTF-8 text.
    """
    rest, size, held = b"", first, 0
    ready: list[bytes] = []
    ended, begun = False, False
    while not ended or ready:
        while (
            not ended
            and len(ready) < size
            and held < WINDOW_BYTES
            and (not ready or _more(descriptor))
        ):
            block = os.read(descriptor, _BLOCK)
            ended, held = not block, held + len(block)
            *whole, rest = (rest + block).split(b"\n")
            ready += whole
            rest = rest[:LONGEST_LINE]
            if ended and rest:
                ready.append(rest)
        if ready:
            if not begun:
                if kind := describe_foreign(ready[0]):
                    raise DataError(f"standard input must be UTF-8 text; it is {kind}")
                ready[0], begun = ready[0].removeprefix(BOM), True
            yield [_without_end(line) for line in ready[:size]]
        ready, size = ready[size:], min(2 * size, most)
        held = sum(map(len, ready))


def texts_of(lines: Sequence[bytes | None]) -> tuple[list[str], dict[int, str]]:
    """The text of each line, "" where it cannot be used, and why it cannot."""
    texts, errors = [""] * len(lines), dict[int, str]()
    for i, line in enumerate(lines):
        try:
            texts[i] = text_of(line)
        except DataError as failure:
            errors[i] = str(failure)
    return texts, errors


def text_of(line: bytes | None) -> str:
    """The text of a line; DataError says why it has none."""
    if line is None:
        raise DataError("lacks the column")
    if len(line) >= LONGEST_LINE:  # it may be cut
        raise DataError(f"has {LONGEST_LINE:,} bytes or more")
    if (at := line.find(b"\0")) >= 0:
        raise DataError(f"has a NUL character at byte {at + 1} (is it UTF-16? give UTF-8)")
    try:
        return line.decode()
    except UnicodeDecodeError as failure:
        raise DataError(f"is not UTF-8 at byte {failure.start + 1}") from None


def _without_end(line: bytes) -> bytes:
    return line if len(line) >= LONGEST_LINE else line.removesuffix(b"\r")


def _more(descriptor: int) -> bool:
    """Whether something can be read at once."""
    return bool(select.select([descriptor], [], [], 0)[0])
