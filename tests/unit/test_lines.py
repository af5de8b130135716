"""Lines as they come: none lost, none added, none late."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from messages import raises

from edgewise.cli.lines import windows
from edgewise.data.text import LONGEST_LINE
from edgewise.errors import DataError

BLOCK = 1 << 16  # what a pipe holds, and what is read at a time


@contextmanager
def file_of(content: bytes) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def windows_of(content: bytes, first: int = 3, most: int = 7) -> list[list[bytes]]:
    with file_of(content) as descriptor:
        return list(windows(descriptor, first, most))


def lines_of(content: bytes) -> list[bytes]:
    return [line for window in windows_of(content) for line in window]


class Pipe:
    """A pipe, and the windows that are read from it."""

    def __init__(self, first: int = 64, most: int = 2048) -> None:
        self.end, self._into = os.pipe()
        self.windows = windows(self.end, first, most)

    def write(self, content: bytes) -> None:
        assert os.write(self._into, content) == len(content)

    def close(self) -> None:
        os.close(self._into)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.end)


@given(
    st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\x00", b"\xff", b"\xc2\x85"]))
)
@example([b"\n"])
@example([b"a", b"\r"])
@example([b"a\n" * 20])
def test_lines_end_with_a_newline_and_with_nothing_else(parts: list[bytes]) -> None:
    content = b"".join(parts)
    *whole, rest = content.split(b"\n")
    expected = [*whole, rest] if rest else whole
    assert lines_of(content) == [line.removesuffix(b"\r") for line in expected]


def test_nothing_has_no_lines() -> None:
    assert windows_of(b"") == []


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_last_line_needs_no_end(end: bytes) -> None:
    assert lines_of(b"a\n\nb" + end) == [b"a", b"", b"b"]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    mark = b"\xef\xbb\xbf"
    assert lines_of(mark + b"a\n" + mark + b"b\n") == [b"a", mark + b"b"]


def test_the_start_of_a_file_that_is_not_text_is_named_however_it_is_read(pipe: Pipe) -> None:
    for byte in "\ufeffa\n".encode("utf-16-le"):
        pipe.write(bytes([byte]))
    with raises(DataError, "standard input", "UTF-8", "UTF-16"):
        next(pipe.windows)
    pipe.close()


def test_separators_of_unicode_end_no_line() -> None:
    line = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg".encode()
    assert lines_of(line + b"\n" + line) == [line, line]


def test_windows_grow_from_the_first_to_the_most() -> None:
    sizes = [len(window) for window in windows_of(b"a\n" * 30, first=3, most=7)]
    assert sizes == [3, 6, 7, 7, 7]


def test_lines_longer_than_what_is_read_at_a_time_stay_whole() -> None:
    lines = [bytes([97 + i]) * size for i, size in enumerate((BLOCK - 1, BLOCK, 3 * BLOCK + 1, 5))]
    assert lines_of(b"\n".join(lines)) == lines


def test_a_character_that_is_read_in_two_parts_stays_whole() -> None:
    line = "x" + "ä" * BLOCK
    assert [line.decode() for line in lines_of(f"{line}\n{line}".encode())] == [line, line]


def test_the_longest_line_that_is_kept_is_kept_whole() -> None:
    line = b"ab" * (LONGEST_LINE // 2 - 1) + b"c"
    assert lines_of(b"x\n" + line + b"\ny") == [b"x", line, b"y"]


def test_a_longer_line_still_looks_too_long_and_is_followed_by_the_next() -> None:
    before, long, after = lines_of(b"x\n" + b"a" * (5 * LONGEST_LINE + 3) + b"\ny\n")
    assert (before, after) == (b"x", b"y")
    assert LONGEST_LINE <= len(long) <= LONGEST_LINE + BLOCK


def test_a_line_is_given_before_the_next_one_is_there(pipe: Pipe) -> None:
    for line in (b"first", b"", b"third\r"):
        pipe.write(line + b"\n")
        assert next(pipe.windows) == [line.removesuffix(b"\r")]
    pipe.close()
    assert next(pipe.windows, None) is None


def test_a_line_is_given_when_its_end_is_there(pipe: Pipe) -> None:
    pipe.write(b"a\nb")
    assert next(pipe.windows) == [b"a"]
    pipe.write(b"c\nd")
    assert next(pipe.windows) == [b"bc"]
    pipe.close()
    assert next(pipe.windows) == [b"d"]
    assert next(pipe.windows, None) is None


def test_lines_that_are_there_already_are_given_together(pipe: Pipe) -> None:
    pipe.write(b"a\nb\n")
    pipe.write(b"c\n")
    assert next(pipe.windows) == [b"a", b"b", b"c"]
    pipe.close()


def test_lines_beyond_a_window_are_given_without_waiting_for_more(pipe: Pipe) -> None:
    pipe.write(b"a\n" * 70)
    assert [len(next(pipe.windows)) for _ in range(2)] == [64, 6]
    pipe.close()
