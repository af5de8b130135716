"""Lines of text files: what ends one, what does not, and what cannot be read."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from messages import assert_mentions, raises

from edgewise.data import text
from edgewise.data.encode import readable
from edgewise.data.text import BOM, LONGEST_LINE, TextFile
from edgewise.errors import DataError, SettingError

Pack = Callable[[bytes], bytes]
# What other readers of lines take for an end, and what ours do.
ATOMS = (
    *(b"\n", b"\r", b"\r\n", b"\t", b"a", b"bc", b"", b" ", b"\x0b", b"\x0c", b"\x1c", b"\x1f\x8b"),
    *("\u2028".encode(), "\u2029".encode(), "\x85".encode(), b"\x85", b"\xff", b"\x00"),
)
CONTENT = st.one_of(st.binary(max_size=40), st.lists(st.sampled_from(ATOMS)).map(b"".join)).filter(
    # gzip's mark; the byte order mark, of which a test of its own tells
    lambda content: not content.startswith((b"\x1f\x8b", BOM))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


@pytest.fixture(params=["plain", "gzip", "gzip in two members"])
def pack(request: pytest.FixtureRequest) -> Pack:
    def packed(content: bytes) -> bytes:
        half = len(content) // 2
        return {
            "plain": content,
            "gzip": gzip.compress(content),
            "gzip in two members": gzip.compress(content[:half]) + gzip.compress(content[half:]),
        }[request.param]

    return packed


def file(path: Path, content: bytes, column: int | None = None) -> TextFile:
    path.write_bytes(content)
    return TextFile(path, column)


def raw_lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\n\ntwo\n\n", [b"one", b"", b"two", b""]),
        (b"one\r\n\r\ntwo\r\n", [b"one", b"", b"two"]),
        (b"one\ntwo\r", [b"one", b"two"]),
        (b"one\rtwo\r\r\nthree", [b"one\rtwo\r", b"three"]),
        (b" one \t\n", [b" one \t"]),
    ],
)
def test_a_line_ends_with_a_line_feed_or_the_file(
    tmp_path: Path, pack: Pack, content: bytes, lines: list[bytes]
) -> None:
    read = file(tmp_path / "a.en", pack(content))
    assert list(read.lines()) == lines
    assert read.count() == len(lines)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r", "\x1c"])
def test_no_other_character_ends_a_line(tmp_path: Path, pack: Pack, character: str) -> None:
    line = f"one{character}two".encode()
    read = file(tmp_path / "a.en", pack(line + b"\nthree\n"))
    assert list(read.lines()) == [line, b"three"]
    assert read.count() == 2


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_is_no_part_of_the_first_line(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    assert list(file(tmp_path / "a", pack(BOM)).lines()) == []
    found = list(file(tmp_path / "a", pack(BOM + b"one\n" + BOM + b"two\n")).lines())
    assert found == [b"one", BOM + b"two"]  # elsewhere it is text


@given(content=CONTENT, block=st.integers(1, 7))
def test_lines_and_their_count_do_not_depend_on_blocks_or_packing(
    folder: Path, content: bytes, block: int
) -> None:
    expected = [line.removesuffix(b"\r") for line in raw_lines(content)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_BLOCK", block)
        for packed in (content, gzip.compress(content)):
            read = file(folder / "a", packed)
            assert list(read.lines()) == expected
            assert read.count() == len(expected)


@pytest.mark.parametrize("name", ["a.en", "a.en.gz", "a"])
def test_gzip_is_known_by_its_content_not_by_its_name(tmp_path: Path, name: str) -> None:
    for packed in (b"one\ntwo\n", gzip.compress(b"one\ntwo\n")):
        assert list(file(tmp_path / name, packed).lines()) == [b"one", b"two"]


@given(content=CONTENT.map(lambda content: content.replace(b"\r", b"")), column=st.integers(1, 4))
def test_a_column_is_that_cell_of_each_line_or_none(
    folder: Path, content: bytes, column: int
) -> None:
    cells = [line.split(b"\t") for line in raw_lines(content)]
    read = file(folder / "a.tsv", content, column)
    assert list(read.lines()) == [c[column - 1] if len(c) >= column else None for c in cells]
    assert read.count() == len(cells)


def test_columns_by_hand(tmp_path: Path) -> None:
    content = b"id\tone\teins\r\n\n2\t\tzwei\tmore\n3\tthree\r\n"
    expected = {
        1: [b"id", b"", b"2", b"3"],
        2: [b"one", None, b"", b"three"],
        3: [b"eins", None, b"zwei", None],
        4: [None, None, b"more", None],
    }
    for column, lines in expected.items():
        assert list(file(tmp_path / "a.tsv", content, column).lines()) == lines


def test_only_the_end_of_a_line_loses_its_carriage_return(tmp_path: Path) -> None:
    assert list(file(tmp_path / "a.tsv", b"one\r\ttwo\r\n", 1).lines()) == [b"one\r"]
    assert list(file(tmp_path / "a.tsv", b"one\r\ttwo\r\n", 2).lines()) == [b"two"]


def test_a_column_that_no_line_has_is_none_however_large(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"one\ttwo\n")
    for column in (3, 10**9, 10**20):
        assert list(TextFile.parse(f"{tmp_path}/a.tsv:{column}").lines()) == [None]


def test_a_line_that_is_too_long_is_cut_and_the_lines_after_it_are_whole(
    tmp_path: Path, pack: Pack
) -> None:
    long = b"x" * (5 * LONGEST_LINE + 3)
    read = file(tmp_path / "a.en", pack(b"one\n" + long + b"\ntwo\n" + long + b"\nthree"))
    first, cut, second, cut_too, third = read.lines()
    assert (first, second, third) == (b"one", b"two", b"three")
    for line in (cut, cut_too):
        assert line is not None
        # It may keep what the last block held of it, but never grows with the line.
        assert LONGEST_LINE <= len(line) <= 2 * LONGEST_LINE
    assert read.count() == 5


@given(content=CONTENT, block=st.integers(1, 7), longest=st.integers(1, 9))
@example(content=b"aaaa\rbbb", block=1, longest=5)  # cut just after what looks like its end
def test_a_line_that_was_cut_never_passes_for_a_whole_one(
    folder: Path, content: bytes, block: int, longest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_BLOCK", block)
        patch.setattr(text, "LONGEST_LINE", longest)
        lines = list(file(folder / "a", content).lines())
    for line, raw in zip(lines, raw_lines(content), strict=True):
        assert line is not None
        if len(raw) < longest:
            assert line == raw.removesuffix(b"\r")
        else:  # so that `encode.readable` calls it too long
            assert line == raw.removesuffix(b"\r") or len(line) >= longest


def test_a_column_of_a_line_that_was_cut_never_passes_for_a_whole_one(tmp_path: Path) -> None:
    # The cut falls into the second column, whose first bytes alone would look like a sentence.
    line = b"x" * (LONGEST_LINE - 5) + b"\tone two three"
    for rest in (b"", b"\tthree" * LONGEST_LINE):
        (cell,) = file(tmp_path / "a.tsv", line + rest, 2).lines()
        assert cell == b"one two three" or readable(cell) != ""


def test_a_name_with_a_number_after_a_colon_is_a_column(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"one\ttwo\tthree\n")
    for column, cell in ((1, b"one"), (3, b"three")):
        parsed = TextFile.parse(f"{tmp_path}/a.tsv:{column}")
        assert parsed == TextFile(tmp_path / "a.tsv", column)
        assert str(parsed) == f"{tmp_path}/a.tsv:{column}"
        assert list(parsed.lines()) == [cell]


def test_a_file_whose_name_has_a_colon_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a:2").write_bytes(b"one\n")
    parsed = TextFile.parse(f"{tmp_path}/a:2")
    assert parsed == TextFile(tmp_path / "a:2", None)
    assert str(parsed) == f"{tmp_path}/a:2"


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tab_separated_values_need_a_column(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"one\ttwo\n")
    with raises(SettingError, tmp_path / name, "column", f"{name}:2"):
        TextFile.parse(f"{tmp_path}/{name}")


def test_column_0_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"one\ttwo\n")
    with raises(SettingError, f"{tmp_path}/a.tsv:0") as caught:
        TextFile.parse(f"{tmp_path}/a.tsv:0")
    assert_mentions(str(caught.value).replace(str(tmp_path), ""), 1)  # the first


@pytest.mark.parametrize("suffix", ["", ":2"])
def test_a_missing_file_is_named(tmp_path: Path, suffix: str) -> None:
    with raises(SettingError, tmp_path / "none.en") as caught:
        TextFile.parse(f"{tmp_path}/none.en{suffix}")
    assert "none.en:2" not in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with raises(SettingError, tmp_path, "gzip", "folder"):
        TextFile.parse(str(tmp_path))


def test_a_gzip_cut_off_anywhere_is_damaged(tmp_path: Path) -> None:
    packed = gzip.compress(b"one\ntwo\n" * 11)
    for size in range(2, len(packed)):
        read = file(tmp_path / "a.gz", packed[:size])
        with raises(DataError, tmp_path / "a.gz", "damaged"):
            list(read.lines())
        with raises(DataError, tmp_path / "a.gz", "damaged"):
            read.count()


def test_a_flipped_bit_in_a_gzip_is_found(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(bytes(range(256)) * 5))
    packed[len(packed) // 2] ^= 4
    with raises(DataError, tmp_path / "a.gz", "damaged"):
        list(file(tmp_path / "a.gz", bytes(packed)).lines())


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"PK\x03\x04", "zip"), (b"BZh9", "bzip2"), ("\ufeffa".encode("utf-16"), "UTF-16")],
)
def test_what_is_no_text_is_named(start: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.en"
    path.write_bytes(start + b"rest\n")
    with raises(DataError, path, "UTF-8", kind):
        TextFile.parse(str(path))


def test_what_is_no_text_is_named_within_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.en.gz"
    for content, kind in (("a\n".encode("utf-16"), "UTF-16"), (gzip.compress(b"a\n"), "gzip")):
        path.write_bytes(gzip.compress(content))
        with raises(DataError, path, "UTF-8", kind, "gzip of"):
            TextFile.parse(str(path))


@pytest.mark.parametrize("line", [b"\0", b"a\0b", "a\n".encode("utf-16-le")])
def test_a_line_with_a_nul_character_is_unusable(line: bytes) -> None:
    assert_mentions(readable(line), "NUL", "UTF-16")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.en"
    path.write_bytes("\ufeffone\n\ufefftwo\n".encode())
    assert list(TextFile(path).lines()) == [b"one", "\ufefftwo".encode()]
    assert TextFile(path).count() == 2
