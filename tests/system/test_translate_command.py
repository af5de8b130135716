"""`edgewise translate`: a line for each line, soon; or why not, and what it exits with."""

import bz2
import gzip
import json
import lzma
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from messages import assert_mentions
from tiny_model import (
    Command,
    Process,
    Result,
    always,
    make_model,
    make_vocabulary,
    reseal,
    streams,
)
from tiny_model import commands as cli

from edgewise.data.grammar import pairs
from edgewise.data.text import LONGEST_LINE
from edgewise.data.vocabulary import END, Vocabulary
from edgewise.decoding import Translator
from edgewise.decoding.settings import penalty
from edgewise.decoding.translator import EncodedTexts
from edgewise.storage import read_json, write_json

USAGE, BAD_DATA, INPUT_OUTPUT = 2, 65, 74
SOURCES = [source for source, _ in pairs(40, 7)]
TEXT = "".join(f"{source}\n" for source in SOURCES)
SHORT = ("--max-length", "8")  # random weights find no end
# Whatever stands in a line, it is a line.
STRANGE = {
    "emoji": "👩‍👩‍👧 🇩🇪 👍🏽",
    "right to left": "مرحبا \u202eabc\u202c בגד",
    "line separator": "a\u2028b\u2029c",
    "next line": "a\x85b",
    "the space of sentencepiece": "▁a▁▁b ▁",
    "the escape of that": "\uf8fe \uf8fe1 \uf8fe0",
    "tab": "a\tb\t",
    "carriage return": "a\rb",
    "other controls": "a\x0bb\x0cc\x1cd\x1b[31me",
    "byte order mark": "a\ufeffb",
    "spaces around": "  a  b  ",
    "no character": "\ufffe\uffff\U0010ffff",
    "names of pieces": "<s> </s> <pad> <unk> <0x0A>",
    "markup": "[bold]a[/] [/b]",
    "a long word": "x" * 300,
}
BLANK = ["", " ", " \t ", "\u3000", "\x85", "\u2028"]
# Not UTF-8 at all, cut off, a surrogate, a slash too long.
NOT_TEXT = [b"\xff", b"abc \xe4", b"a\xed\xa0\x80b", b"\xc0\xaf"]

Translate = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="module")
def model(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("translate") / "model", vocabulary)


@pytest.fixture(scope="module")
def another(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same vocabulary."""
    return make_model(tmp_path_factory.mktemp("another") / "model", vocabulary, seed=2)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing in it is as in the model."""
    folder = tmp_path_factory.mktemp("foreign") / "model"
    return make_model(folder, make_vocabulary(2), seed=3, generation={"beam": 5}, d_ff=40)


@pytest.fixture
def translate(model: Path, tmp_path: Path) -> Translate:
    """`edgewise translate` of our model or others, in this process."""
    command = Command(tmp_path)

    def run_it(
        *options: str | Path,
        stdin: bytes | str = TEXT,
        models: tuple[Path, ...] = (model,),
        short: bool = True,
    ) -> Result:
        length = SHORT if short and "--max-length" not in options else ()
        return command("translate", "--model", *models, *length, *options, stdin=stdin)

    return run_it


def records(result: Result) -> list[dict[str, Any]]:
    """The objects of jsonl output; NaN and Infinity are no JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in result.lines]


def assert_summary(result: Result, *facts: object) -> None:
    """Assert that the last line is an error with these facts: the number of refused lines."""
    last = result.said.splitlines()[-1]
    assert last.startswith("edgewise: ")
    assert_mentions(last, *facts)


def texts(result: Result) -> list[str]:
    return [record["translations"][0]["text"] for record in records(result)]


# A line for each line.


def test_each_line_has_its_translation_in_order(translate: Translate, model: Path) -> None:
    result = translate()
    translator = Translator.load(model)
    alone = [translator.translate([source], max_length=8)[0] for source in SOURCES]
    assert (result.code, result.lines) == (0, alone)
    assert len(set(alone)) > 10  # or order would mean little


def test_more_lines_than_are_translated_together_stay_in_order(translate: Translate) -> None:
    # Windows of 64, 128 and 256 lines, and a rest.
    chosen = random.Random(5).choices(range(len(SOURCES)), k=460)
    options = ("--beam", "1", "--max-length", "2")
    each = translate(*options).lines
    result = translate(*options, stdin="".join(f"{SOURCES[i]}\n" for i in chosen))
    assert (result.code, result.lines) == (0, [each[i] for i in chosen])


def test_people_are_told_on_stderr_how_many_lines_there_were(translate: Translate) -> None:
    progress, *_, total = translate().said.splitlines()
    assert_mentions(progress, 40)
    assert_mentions(total, "40 lines")
    assert re.search(r"\b\d+\.\d s\b", total)


def test_no_lines_give_no_lines(translate: Translate) -> None:
    for form in ("text", "jsonl", "tsv"):
        result = translate("--format", form, stdin=b"")
        assert (result.code, result.out) == (0, b"")


def test_blank_lines_give_empty_lines(translate: Translate) -> None:
    whole = translate(stdin=f"{SOURCES[0]}\n{SOURCES[1]}\n").lines
    result = translate(stdin="\n".join([SOURCES[0], *BLANK, SOURCES[1], *BLANK, ""]))
    empty = [""] * len(BLANK)
    assert (result.code, result.lines) == (0, [whole[0], *empty, whole[1], *empty])


def test_blank_lines_alone_give_empty_lines(translate: Translate) -> None:
    assert translate(stdin="\n\n \n").out == b"\n\n\n"


def test_the_last_line_needs_no_end(translate: Translate) -> None:
    assert translate(stdin=TEXT.removesuffix("\n")).out == translate().out


def test_ends_of_lines_may_be_those_of_windows(translate: Translate) -> None:
    assert translate(stdin=TEXT.replace("\n", "\r\n")).out == translate().out


def test_a_byte_order_mark_is_not_translated(translate: Translate) -> None:
    assert translate(stdin=f"\ufeff{TEXT}").out == translate().out


def test_any_characters_are_translated_and_disturb_no_other_line(translate: Translate) -> None:
    plain = records(translate("--format", "jsonl"))
    lines = [line for pair in zip(STRANGE.values(), SOURCES, strict=False) for line in pair]
    result = translate("--format", "jsonl", stdin="".join(f"{line}\n" for line in lines))
    found = records(result)
    assert result.code == 0
    assert [record["source"] for record in found] == lines
    for strange, ordinary, expected in zip(found[::2], found[1::2], plain, strict=False):
        assert strange["translations"][0]["log_probability"] < 0
        assert ordinary["translations"] == expected["translations"]


def test_any_characters_are_translated_to_one_line_of_text_and_of_tsv(translate: Translate) -> None:
    lines = "".join(f"{line}\n" for line in STRANGE.values())
    assert len(translate(stdin=lines).lines) == len(STRANGE)
    rows = [line.split("\t") for line in translate("--format", "tsv", stdin=lines).lines]
    assert [len(row) for row in rows] == [5] * len(STRANGE)


def test_characters_make_a_difference_to_the_translation(translate: Translate) -> None:
    similar = ["a b", "a\u2028b", "a\x85b", "a\x01b", "a▁b", "a\ufeffb", "a\tb", "a\rb", "a  b"]
    found = records(translate("--format", "jsonl", stdin="".join(f"{x}\n" for x in similar)))
    assert len({record["translations"][0]["log_probability"] for record in found}) == len(similar)


@pytest.mark.parametrize("options", [(), ("--sample", "--n-best", "8")], ids=["beam", "sample"])
def test_a_model_that_likes_newlines_and_tabs_makes_neither_lines_nor_columns(
    translate: Translate, vocabulary: Vocabulary, tmp_path: Path, options: tuple[str, ...]
) -> None:
    first = vocabulary.newline - ord("\n")
    liked = {first + byte: 4.0 for byte in b"\t\v\f\x00\xe2\x80\xa8\xc2\x85"}
    folder = make_model(
        tmp_path / "m", vocabulary, change=always(liked | {vocabulary.newline: 9, END: 3})
    )
    rows = translate("--format", "tsv", *options, models=(folder,)).lines
    cells = [row.split("\t") for row in rows]
    count = 8 if options else 1
    assert [int(row[0]) for row in cells] == [1 + i // count for i in range(40 * count)]
    assert [len(row) for row in cells] == [5] * len(rows)
    assert "\n" not in "".join(texts(translate("--format", "jsonl", *options, models=(folder,))))
    assert len(translate(*options[:1], models=(folder,)).lines) == 40


def test_a_translation_may_be_empty_and_is_a_line(
    translate: Translate, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    folder = make_model(tmp_path / "m", vocabulary, change=always({END: 2.0, 500: 1.0}))
    assert translate(models=(folder,)).out == b"\n" * 40
    rest = (vocabulary.size - 2) * math.exp(-20)
    expected = 2 - math.log(math.exp(2) + math.exp(1) + rest)
    for record in records(translate("--format", "jsonl", models=(folder,))):
        (found,) = record["translations"]
        assert found["log_probability"] == pytest.approx(expected, abs=1e-5)
        assert found["score"] == pytest.approx(expected, abs=1e-5)  # of length 1: no penalty


# Lines that are refused.


def test_lines_that_are_not_text_are_named_and_are_empty(translate: Translate) -> None:
    plain = translate(stdin="".join(f"{line}\n" for line in SOURCES[:5])).lines
    lines = [
        line for pair in zip(map(str.encode, SOURCES), NOT_TEXT, strict=False) for line in pair
    ]
    result = translate(stdin=b"\n".join([*lines, SOURCES[4].encode()]))
    assert result.code == BAD_DATA
    assert result.lines == [*(line for text in plain[:4] for line in (text, "")), plain[4]]
    reports = [line for line in result.said.splitlines() if "UTF-8" in line]
    for report, line, byte in zip(reports, (2, 4, 6, 8), (1, 5, 2, 1), strict=True):
        assert_mentions(report, f"line {line}", f"byte {byte}")
    assert_summary(result, 4, 9)


@pytest.mark.parametrize("size", [100_000, LONGEST_LINE - 1, 3 * LONGEST_LINE + 5])
def test_a_line_that_is_too_long_is_named_and_is_empty(translate: Translate, size: int) -> None:
    long = ("word " * size)[:size]
    result = translate(stdin=f"{SOURCES[0]}\n{long}\n{SOURCES[1]}\n")
    plain = translate(stdin=f"{SOURCES[0]}\n{SOURCES[1]}\n").lines
    assert (result.code, result.lines) == (BAD_DATA, [plain[0], "", plain[1]])
    (report,) = [line for line in result.said.splitlines() if "line 2" in line]
    assert_mentions(report, "line 2", "1,024" if size < LONGEST_LINE else f"{LONGEST_LINE:,}")
    assert_summary(result, 1, 3)


def test_a_refused_line_has_its_number_where_many_came_before(translate: Translate) -> None:
    lines = [SOURCES[0].encode()] * 500
    lines[299] = b"\xff"
    result = translate("--beam", "1", "--max-length", "1", stdin=b"\n".join(lines))
    assert (result.code, len(result.lines)) == (BAD_DATA, 500)
    assert_mentions(result.said, "line 300", "UTF-8")
    assert [i for i, line in enumerate(result.lines) if not line] == [299]


def test_a_line_with_a_nul_character_is_named_and_is_empty(translate: Translate) -> None:
    result = translate(stdin=f"{SOURCES[0]}\nab\0c\n{SOURCES[1]}\n")
    plain = translate(stdin=f"{SOURCES[0]}\n{SOURCES[1]}\n").lines
    assert (result.code, result.lines) == (BAD_DATA, [plain[0], "", plain[1]])
    (report,) = [line for line in result.said.splitlines() if "line 2" in line]
    assert_mentions(report, "NUL", "byte 3", "UTF-16", "UTF-8")
    assert_summary(result, 1, 3)


def test_utf_16_without_a_mark_has_no_line_that_is_translated(translate: Translate) -> None:
    result = translate(stdin=TEXT.encode("utf-16-le"))
    assert (result.code, set(result.lines)) == (BAD_DATA, {""})
    assert_summary(result, 41, 41)  # the last line end is cut into two


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (TEXT.encode("utf-16"), ("UTF-16", "iconv")),
        ("\ufeff".encode("utf-16-be") + TEXT.encode("utf-16-be"), ("UTF-16", "iconv")),
        (gzip.compress(TEXT.encode()), ("gzip",)),
        (bz2.compress(TEXT.encode()), ("bzip2",)),
        (lzma.compress(TEXT.encode()), ("xz",)),
        (b"PK\x03\x04 and so on", ("zip",)),
        (b"\x28\xb5\x2f\xfd and so on", ("zstd",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_input_that_is_not_text_exits_with_65_and_what_to_do(
    translate: Translate, content: bytes, facts: tuple[str, ...]
) -> None:
    result = translate(stdin=content)
    assert (result.code, result.out) == (BAD_DATA, b"")
    (said,) = result.said.splitlines()
    assert_mentions(said, "standard input", "UTF-8", *facts)


def test_a_line_is_cut_into_tokens_once_and_a_window_in_one_call(
    translate: Translate, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    encode = Vocabulary.encode

    def counted(self: Vocabulary, lines: Sequence[str]) -> list[list[int]]:
        calls.append(len(lines))
        return encode(self, lines)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    lines = [SOURCES[0], *[""] * 998, SOURCES[1]]
    result = translate("--beam", "1", "--max-length", "1", stdin="".join(f"{x}\n" for x in lines))
    assert (result.code, len(result.lines)) == (0, 1000)
    probe, *calls = calls  # when the vocabulary is loaded
    assert (probe, sum(calls)) == (1, 1000)
    assert len(calls) <= 6


def test_a_refused_line_is_an_error_in_jsonl(translate: Translate) -> None:
    result = translate("--format", "jsonl", stdin=b"a\n\xff\nb\n")
    one, two, three = records(result)
    assert result.code == BAD_DATA
    assert two.keys() == {"line", "error"}
    assert two["line"] == 2
    assert_mentions(two["error"], "UTF-8", "byte 1")
    assert [one["line"], three["line"]] == [1, 3]


def test_a_refused_line_is_a_row_without_text_in_tsv(translate: Translate) -> None:
    result = translate("--format", "tsv", "--n-best", "3", stdin=b"a\n\xff\nb\n")
    rows = [line.split("\t") for line in result.lines]
    assert result.code == BAD_DATA
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "3", "3", "3"]
    assert rows[3][4] == ""


def test_a_line_as_long_as_allowed_is_translated_whole(
    translate: Translate, vocabulary: Vocabulary
) -> None:
    """Its last word makes a difference; one token more is refused."""
    words = " ".join(["a"] * 1500)
    lines = [f"{words} dog", f"{words} cat"]
    counts = {len(tokens) for tokens in vocabulary.encode(lines)}
    options = ("--format", "jsonl", "--beam", "1", "--max-length", "3", "--max-source-tokens")
    result = translate(*options, str(max(counts)), stdin="\n".join(lines))
    first, second = (record["translations"][0]["log_probability"] for record in records(result))
    assert result.code == 0
    assert first != second
    limit = min(counts) - 1
    refused = translate(*options, str(limit), stdin="\n".join(lines))
    assert refused.code == BAD_DATA
    reports = [line for line in refused.said.splitlines() if f"{limit:,}" in line]
    for report, number in zip(reports, (1, 2), strict=True):
        assert_mentions(report, f"line {number}", "tokens", f"{limit:,}")


def test_a_line_that_is_not_kept_whole_is_refused_whatever_is_allowed(
    translate: Translate, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    found = Translator.translations

    def seen(self: Translator, source: EncodedTexts, **options: Any) -> Any:
        given.extend(source.texts)
        return found(self, source.without(range(2)), **options)

    monkeypatch.setattr(Translator, "translations", seen)
    long = "a" * (2 * LONGEST_LINE)
    result = translate("--max-source-tokens", str(4 * LONGEST_LINE), stdin=f"{long}\nb\n")
    assert given == ["", "b"]
    assert result.code == BAD_DATA
    assert_mentions(result.said, "line 1", f"{LONGEST_LINE:,}")


# Formats.


@pytest.mark.parametrize("options", [(), ("--sample", "--seed", "3")], ids=["beam", "sample"])
def test_formats_say_the_same(translate: Translate, options: tuple[str, ...]) -> None:
    plain = translate(*options).lines
    found = records(translate("--format", "jsonl", *options))
    rows = [line.split("\t") for line in translate("--format", "tsv", *options).lines]
    assert texts(translate("--format", "jsonl", *options)) == plain
    for i, (record, row) in enumerate(zip(found, rows, strict=True)):
        assert record.keys() == {"line", "source", "translations"}
        assert (record["line"], record["source"]) == (i + 1, SOURCES[i])
        (best,) = record["translations"]
        assert best.keys() == {"text", "score", "log_probability", "pieces"}
        numbers = [f"{best['score']:.6f}", f"{best['log_probability']:.6f}"]
        assert row == [str(i + 1), "1", *numbers, plain[i].replace("\t", " ")]


def test_scores_are_log_probabilities_with_the_penalty_of_the_length(translate: Translate) -> None:
    result = translate("--format", "jsonl", "--length-penalty", "0.9")
    for record in records(result):
        (best,) = record["translations"]
        expected = best["log_probability"] / penalty(len(best["pieces"]) + 1, 0.9)
        assert best["score"] == pytest.approx(expected)


def test_the_n_best_differ_and_come_in_order(translate: Translate) -> None:
    options = ("--beam", "6", "--n-best", "5", "--format")
    found = records(translate(*options, "jsonl"))
    for record in found:
        pieces = [tuple(each["pieces"]) for each in record["translations"]]
        scores = [each["score"] for each in record["translations"]]
        assert len(set(pieces)) == 5
        assert scores == sorted(scores, reverse=True)
    rows = [line.split("\t") for line in translate(*options, "tsv").lines]
    flat = [(record["line"], i + 1) for record in found for i in range(5)]
    assert [(int(row[0]), int(row[1])) for row in rows] == flat


def test_many_translations_have_no_place_in_text(translate: Translate) -> None:
    result = translate("--n-best", "2")
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, "--format", "text", "--n-best", 2, "jsonl", "tsv")


# Words that belong together.


def test_alignments_have_a_line_for_each_line_and_link_words_that_exist(
    translate: Translate, tmp_path: Path
) -> None:
    lines = [*SOURCES[:6], "", *STRANGE.values(), " "]
    stdin = "".join(f"{line}\n" for line in lines).encode() + b"\xff\n" + SOURCES[6].encode()
    links = tmp_path / "links"
    result = translate("--alignments", links, "--format", "jsonl", stdin=stdin)
    found = links.read_text().split("\n")
    assert found.pop() == ""
    assert len(found) == len(result.lines) == len(lines) + 2
    for line, record in zip(found, records(result), strict=True):
        if "error" in record:
            assert line == ""
            continue
        (best,) = record["translations"]
        assert best["alignment"] == line
        source, target = (
            [word for word in text.split(" ") if word] for text in (record["source"], best["text"])
        )
        pairs_of_words = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert all(0 <= i < len(source) and 0 <= j < len(target) for i, j in pairs_of_words)
        assert bool(pairs_of_words) == bool(record["source"].strip() and best["text"].strip(" "))


def test_alignments_are_a_column_of_tsv(translate: Translate, tmp_path: Path) -> None:
    links = tmp_path / "links"
    result = translate("--alignments", links, "--format", "tsv")
    rows = [line.split("\t") for line in result.lines]
    assert [row[5] for row in rows] == links.read_text().splitlines()


def test_alignments_change_no_translation(translate: Translate, tmp_path: Path) -> None:
    assert translate("--alignments", tmp_path / "links").out == translate().out


def test_alignments_that_cannot_be_written_are_told_before_the_work(
    translate: Translate, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    for place, code, named in (("", USAGE, ""), ("file/links", INPUT_OUTPUT, "file")):
        result = translate("--alignments", tmp_path / place)
        assert (result.code, result.out) == (code, b"")
        assert "edgewise: " in result.said
        assert_mentions(result.said, tmp_path / named)


def test_a_folder_for_alignments_is_made(translate: Translate, tmp_path: Path) -> None:
    assert translate("--alignments", tmp_path / "new" / "links").code == 0
    assert (tmp_path / "new" / "links").is_file()


# Prefixes.


def test_translations_begin_with_their_prefixes(translate: Translate, tmp_path: Path) -> None:
    begun = ["Der", "", "  zwei  Wörter", "▁\uf8fe1 👍", "Die Frau, die", "\x01\u2028", " "]
    (tmp_path / "p.gz").write_bytes(gzip.compress("".join(f"{x}\n" for x in begun).encode()))
    for options in ((), ("--beam", "1"), ("--sample",)):
        result = translate(
            *options,
            *("--prefixes", tmp_path / "p.gz", "--max-length", "30"),
            stdin="".join(f"{source}\n" for source in SOURCES[:7]),
        )
        assert result.code == 0
        for prefix, line in zip(begun, result.lines, strict=True):
            assert line.startswith(prefix)


def test_a_prefix_is_what_the_search_goes_on_from(translate: Translate, tmp_path: Path) -> None:
    """Of its own translation, all but the end: the same translation."""
    best = translate("--beam", "1", "--max-length", "1", "--format", "jsonl")
    (tmp_path / "p").write_text("".join(f"{text}\n" for text in texts(best)), encoding="utf-8")
    alone = texts(translate("--beam", "1", "--format", "jsonl"))
    begun = texts(translate("--beam", "1", "--format", "jsonl", "--prefixes", tmp_path / "p"))
    # Where the first piece is text that is split into just that piece.
    same = [text for text, other in zip(alone, begun, strict=True) if text == other]
    assert len(same) > 10


def test_a_prefix_of_an_empty_line_is_nothing(translate: Translate, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("Der\nDer\n")
    assert translate("--prefixes", tmp_path / "p", stdin="\n\n").out == b"\n\n"


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", ("line 1",)),
        (b"Der\nDie\n", ("line 3",)),
        (b"Der\nDie\nDas\nDen\n", ("lines", 3)),
        (b"Der\n\xff\nDas\n", ("line 2", "UTF-8")),
        (b"Der\nD\0\nDas\n", ("line 2", "NUL")),
    ],
)
def test_prefixes_that_do_not_fit_exit_with_65(
    translate: Translate, tmp_path: Path, content: bytes, facts: tuple[object, ...]
) -> None:
    (tmp_path / "p").write_bytes(content)
    result = translate("--prefixes", tmp_path / "p", stdin="a\nb\nc\n")
    assert result.code == BAD_DATA
    assert_mentions(result.said, tmp_path / "p")
    error = result.said.partition("edgewise: ")[2]
    assert_mentions(error.replace(str(tmp_path), ""), "p", *facts)


def test_a_prefix_without_its_column_is_said_to_lack_that(
    translate: Translate, tmp_path: Path
) -> None:
    (tmp_path / "p.tsv").write_text("x\tDer\nx\ny\tDas\n")
    result = translate("--prefixes", f"{tmp_path}/p.tsv:2", stdin="a\nb\nc\n")
    assert result.code == BAD_DATA
    assert_mentions(result.said, "line 2", f"{tmp_path}/p.tsv:2", "column")


def test_a_prefix_that_is_too_long_is_refused_with_its_number(
    translate: Translate, tmp_path: Path
) -> None:
    (tmp_path / "p").write_text("Der\n" + "Die " * 60 + "\n")
    options = ("--max-source-tokens", "50", "--prefixes", tmp_path / "p")
    result = translate(*options, stdin="a\nb\n")
    assert result.code == BAD_DATA
    assert_mentions(result.said, "line 2", tmp_path / "p", 50)


def test_prefixes_that_are_not_there_exit_with_2(translate: Translate, tmp_path: Path) -> None:
    result = translate("--prefixes", tmp_path / "p")
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, tmp_path / "p")


# What a translation depends on.


def without_lines(result: Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "line"} for record in records(result)]


@pytest.mark.parametrize(
    "options",
    [("--beam", "4", "--n-best", "3"), ("--beam", "1"), ("--sample", "--n-best", "2")],
    ids=["beam", "greedy", "sample"],
)
def test_a_translation_does_not_depend_on_the_batch_the_order_or_its_neighbours(
    translate: Translate, options: tuple[str, ...]
) -> None:
    given = (*options, "--format", "jsonl")
    together = translate(*given)
    for tokens in ("1", "150", "100000"):
        assert translate(*given, "--batch-tokens", tokens).out == together.out
    order = random.Random(2).sample(range(40), 40)
    other = without_lines(translate(*given, stdin="".join(f"{SOURCES[i]}\n" for i in order)))
    expected = without_lines(together)
    assert other == [expected[i] for i in order]
    long = " ".join(SOURCES[:5])
    for i in (0, 17):
        alone = translate(*given, stdin=SOURCES[i])
        beside = translate(*given, stdin=f"{SOURCES[i]}\n{long}\nx")
        assert without_lines(alone) == without_lines(beside)[:1] == [expected[i]]


def test_samples_are_the_same_with_a_seed_and_others_with_another(translate: Translate) -> None:
    first = translate("--sample", "--seed", "1")
    assert first.code == 0
    assert translate("--sample", "--seed", "1").out == first.out
    other = translate("--sample", "--seed", "2").lines
    assert sum(x != y for x, y in zip(first.lines, other, strict=True)) > 30
    assert translate().lines != first.lines


def test_samples_of_one_sentence_differ(translate: Translate) -> None:
    for record in records(translate("--sample", "--n-best", "4", "--format", "jsonl")):
        assert len({tuple(each["pieces"]) for each in record["translations"]}) == 4


@pytest.mark.parametrize("option", [("--top-k", "1"), ("--top-p", "1e-9")])
def test_samples_of_the_likeliest_alone_are_the_greedy_translation(
    translate: Translate, option: tuple[str, str]
) -> None:
    assert translate("--sample", *option).out == translate("--beam", "1").out


@pytest.mark.parametrize("temperature", ["1e-320", "1e-30", "1e300", "inf"])
def test_any_temperature_is_refused_or_gives_numbers(
    translate: Translate, temperature: str
) -> None:
    result = translate("--sample", "--temperature", temperature, "--format", "jsonl")
    assert result.code in (0, USAGE)
    for record in records(result):
        assert "<pad>" not in record["translations"][0]["pieces"]


@pytest.mark.parametrize("power", ["0", "5", "1e6", "inf"])
def test_any_length_penalty_is_refused_or_gives_translations(
    translate: Translate, power: str
) -> None:
    result = translate("--length-penalty", power, "--format", "jsonl")
    assert result.code in (0, USAGE)
    assert len(records(result)) == (40 if result.code == 0 else 0)


# Several models.


def test_a_model_with_itself_translates_as_alone(translate: Translate, model: Path) -> None:
    twice = translate(models=(model, model))
    assert (twice.code, twice.lines) == (0, translate().lines)


def test_models_together_translate_in_their_own_way(
    translate: Translate, model: Path, another: Path
) -> None:
    outputs = [translate(models=chosen) for chosen in ((model,), (another,), (model, another))]
    assert [result.code for result in outputs] == [0, 0, 0]
    assert len({result.out for result in outputs}) == 3
    small = translate("--batch-tokens", "1", models=(model, another))
    assert small.out == outputs[2].out


def test_models_of_different_vocabularies_exit_with_2(
    translate: Translate, model: Path, foreign: Path
) -> None:
    result = translate(models=(model, foreign))
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, "vocabulary", foreign, model)


# Settings.


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (("--n-best", "5", "--format", "tsv"), ("n_best", 5, "beam", 4)),
        (("--beem", "3"), ("--beem", "--beam")),
        (("--nbest", "3"), ("--nbest", "--n-best")),
        (("--beam", "0"), ("beam", 1, 0)),
        (("--beam", "wide"), ("beam", "wide")),
        (("--beam",), ("--beam",)),
        (("--format", "xml"), ("--format", "xml")),
        (("--temperature", "2"), ("temperature", "sample")),
        (("--sample", "--top-p", "1.5"), ("top_p", 1, "1.5")),
        (("--length-penalty", "nan"), ("length_penalty", "nan")),
        (("--min-length", "9"), ("min_length", 9, "max_length", 8)),
        (("--threads", "0"), ("--threads", 1, 0)),
        (("--batch-tokens", "-1"), ("--batch-tokens", 1, -1)),
        (("--max-source-tokens", "0"), ("--max-source-tokens", 1, 0)),
        (("in.en",), ("in.en",)),
    ],
)
def test_a_setting_that_cannot_be_exits_with_2(
    translate: Translate, options: tuple[str, ...], facts: tuple[object, ...]
) -> None:
    result = translate(*options)
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, *facts)


def test_a_model_must_be_named(tmp_path: Path) -> None:
    result = Command(tmp_path)("translate", stdin=TEXT)
    assert (result.code, result.out) == (USAGE, b"")
    assert "--model" in result.said


@pytest.mark.parametrize("device", ["", "nope", "cuda:99", "cpu:x", "meta", "mps:7", "hpu"])
def test_a_device_that_is_not_there_exits_with_2(translate: Translate, device: str) -> None:
    result = translate("--device", device)
    assert (result.code, result.out) == (USAGE, b"")
    assert "edgewise: " in result.said
    assert_mentions(result.said, "--device", "auto", "cpu", "cuda:0", repr(device))


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_device_can_be_named(translate: Translate, device: str) -> None:
    assert translate("--device", device).code == 0


def test_threads_are_as_many_as_asked_for(translate: Translate) -> None:
    before = torch.get_num_threads()
    try:
        assert translate("--threads", "2").code == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_more_threads_than_can_be_are_refused(translate: Translate) -> None:
    result = translate("--threads", str(10**14))
    assert (result.code, result.out) == (USAGE, b"")
    assert "--threads" in result.said


def test_the_folder_says_how_it_is_to_be_used_and_flags_go_before(
    translate: Translate, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    folder = make_model(tmp_path / "m", vocabulary, generation={"beam": 1, "max_length": 3})
    alone = translate(models=(folder,), short=False)
    assert alone.out == translate("--beam", "1", "--max-length", "3").out
    changed = translate("--beam", "4", models=(folder,), short=False)
    assert changed.out == translate("--max-length", "3").out


@pytest.mark.parametrize(
    ("generation", "options"),
    [
        ({"beam": 8}, ("--n-best", "6", "--format", "tsv")),
        ({"sample": True}, ("--top-k", "5", "--seed", "2")),
        ({"min_length": 5}, ("--max-length", "6")),
    ],
)
def test_a_flag_needs_to_fit_what_the_folder_asks_for_only(
    translate: Translate,
    vocabulary: Vocabulary,
    tmp_path: Path,
    generation: dict[str, object],
    options: tuple[str, ...],
) -> None:
    folder = make_model(tmp_path / "m", vocabulary, generation=generation)
    flags = [f"--{name.replace('_', '-')}" for name in generation]
    values = [[] if value is True else [str(value)] for value in generation.values()]
    spelled = [word for flag, value in zip(flags, values, strict=True) for word in (flag, *value)]
    result = translate(*options, models=(folder,))
    assert result.code == 0
    assert result.out == translate(*spelled, *options).out


@pytest.mark.parametrize("content", ['{"beam": 0}', '{"beams": 4}', "[4]", "{"])
def test_a_folder_that_asks_for_what_cannot_be_exits_with_65(
    translate: Translate, model: Path, tmp_path: Path, content: str
) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    (folder / "generation_config.json").write_text(content)
    reseal(folder)
    result = translate(models=(folder,))
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert str(folder / "generation_config.json") in result.said


# Folders that are damaged, or no model's.


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer/vocabulary.model",
    ],
)
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed", "swapped"])
def test_a_damaged_folder_exits_with_65_and_names_the_file(
    translate: Translate, model: Path, foreign: Path, tmp_path: Path, name: str, damage: str
) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    file = folder / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        shutil.copyfile(foreign / name, file)
    result = translate(models=(folder,))
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert str(folder) in result.said
    # A manifest of something else finds fault with the other files.
    assert name in result.said or (name == "manifest.json" and damage in ("changed", "swapped"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer/vocabulary.model"])
def test_files_of_different_models_exit_with_65_even_if_sealed(
    translate: Translate, model: Path, foreign: Path, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    shutil.copyfile(foreign / name, folder / name)
    reseal(folder)
    result = translate(models=(folder,))
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert str(folder) in result.said


def test_a_folder_without_a_tokenizer_exits_with_65_even_if_sealed(
    translate: Translate, model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    shutil.rmtree(folder / "tokenizer")
    reseal(folder)
    result = translate(models=(folder,))
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert_mentions(result.said, folder, "tokenizer/vocabulary.model")


def test_a_folder_of_another_version_exits_with_65(
    translate: Translate, model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    manifest = folder / "manifest.json"
    write_json(manifest, {**read_json(manifest), "version": 99})
    result = translate(models=(folder,))
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert_mentions(result.said, folder, "version 99")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "options",
    [(), ("--sample",), ("--sample", "--top-k", "3"), ("--sample", "--top-p", "0.5")],
    ids=" ".join,
)
def test_a_weight_that_is_no_number_exits_with_65(
    translate: Translate,
    vocabulary: Vocabulary,
    tmp_path: Path,
    value: float,
    options: tuple[str, ...],
) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["decoder.0.cross.value.weight"][3, 5] = value

    folder = make_model(tmp_path / "m", vocabulary, change=damage)
    result = translate(*options, models=(folder,))
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert "damaged" in result.said


def test_a_folder_that_is_not_there_exits_with_2(translate: Translate, tmp_path: Path) -> None:
    result = translate(models=(tmp_path / "nowhere",))
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, "model", tmp_path / "nowhere")


def test_a_folder_of_anything_else_exits_with_65(translate: Translate, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    result = translate(models=(tmp_path / "else",))
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert_mentions(result.said, tmp_path / "else", "model", "manifest.json")


def test_a_training_run_exits_with_2_and_names_its_models(
    translate: Translate, model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for name in ("best", "last"):
        shutil.copytree(model, run / name)
    write_json(run / "run.json", {})
    result = translate(models=(run,))
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, run / "best", run / "last")
    assert translate(models=(run / "best",)).code == 0


# Streams.


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_a_stream_that_is_closed_exits_with_74(
    model: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "in").open("w+") as source, streams(**{"stdin": source, name: None}):
        assert cli.run(["translate", "--model", str(model)]) == INPUT_OUTPUT
    assert capsys.readouterr().err.startswith("edgewise: ")


def test_without_anybody_to_tell_lines_are_translated(
    translate: Translate, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text(TEXT)
    with (
        (tmp_path / "in").open() as source,
        (tmp_path / "out").open("w") as out,
        streams(stdin=source, stdout=out, stderr=None),
    ):
        assert cli.run(["translate", "--model", str(model), *SHORT]) == 0
    assert (tmp_path / "out").read_bytes() == translate().out


def test_a_line_is_translated_before_the_next_is_written(model: Path, translate: Translate) -> None:
    expected = translate().out.splitlines(keepends=True)
    with Process("translate", "--model", model, *SHORT) as process:
        for source, translation in zip(SOURCES[:5], expected, strict=False):
            process.write(f"{source}\n")
            assert process.line() == translation
        process.write("".join(f"{source}\n" for source in SOURCES[5:]))
        result = process.result()
    assert (result.code, result.out) == (0, b"".join(expected[5:]))
    assert_mentions(result.said, "40 lines")
    assert re.search(r"\b\d+\.\d s\b", result.said)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_command_that_is_stopped_while_it_waits_says_so_and_keeps_what_it_wrote(
    model: Path, translate: Translate, number: int, code: int, said: str
) -> None:
    with Process("translate", "--model", model, *SHORT) as process:
        process.write(f"{SOURCES[0]}\nhalf a li")
        assert process.line() == translate(stdin=SOURCES[0]).out
        process.signal(number)
        result = process.result(close=False)
    assert (result.code, result.out) == (code, b"")
    last = result.said.splitlines()[-1]
    assert last.startswith("edgewise: ")
    assert_mentions(last, said)


def test_a_reader_that_has_enough_ends_the_command_in_peace(
    model: Path, translate: Translate
) -> None:
    """As with `| head -1`; it ends though its own input has not."""
    with Process("translate", "--model", model, *SHORT) as process:
        process.write(f"{SOURCES[0]}\n")
        assert process.line() == translate(stdin=SOURCES[0]).out
        process.close_output()
        process.write(f"{SOURCES[0]}\n")
        result = process.result(close=False)
    assert result.code == 0
    assert "edgewise:" not in result.said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_exits_with_74(model: Path) -> None:
    with (
        open("/dev/full", "wb") as full,
        Process("translate", "--model", model, *SHORT, stdout=full) as process,
    ):
        process.write(TEXT)
        result = process.result()
    assert result.code == INPUT_OUTPUT
    (said,) = result.said.splitlines()
    assert said.startswith("edgewise: ")
    assert_mentions(said, "No space left on device")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_of_alignments_exits_with_74(translate: Translate) -> None:
    result = translate("--alignments", "/dev/full")
    assert result.code == INPUT_OUTPUT
    assert "No space left on device" in result.said


def test_alignments_that_are_there_are_replaced_only_if_asked(
    translate: Translate, tmp_path: Path
) -> None:
    links = tmp_path / "links"
    links.write_text("kept")
    result = translate("--alignments", links)
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, links, "exists", "--overwrite")
    assert links.read_text() == "kept"
    assert translate("--alignments", links, "--overwrite").code == 0
    assert links.read_text() != "kept"


def test_lines_before_a_prefix_that_is_missing_are_translated(
    translate: Translate, tmp_path: Path
) -> None:
    (tmp_path / "p").write_text("Der\nDie\n")
    result = translate("--prefixes", tmp_path / "p", stdin="a\nb\nc\n")
    assert result.code == BAD_DATA
    assert [line.split()[0][:3] for line in result.lines] == ["Der", "Die"]


def peak(model: Path, lines: int, folder: Path) -> int:
    """The most memory of a process that translates so many lines, in bytes."""
    command = [sys.executable, "-m", "edgewise", "translate"]
    (folder / "in").write_text("".join(f"{english}\n" for english, _ in pairs(lines, seed=4)))
    with (folder / "in").open("rb") as source, (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [*command, "--model", str(model), "--beam", "1", *SHORT],
            stdin=source,
            stdout=out,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    assert (folder / "out").read_bytes().count(b"\n") == lines
    return usage.ru_maxrss * 1024


@pytest.mark.long
@pytest.mark.parametrize("lines", [100_000])
def test_memory_does_not_grow_with_the_number_of_lines(
    model: Path, tmp_path: Path, lines: int
) -> None:
    # Windows grow up to 2,048 lines: so many have them all.
    assert peak(model, lines, tmp_path) <= peak(model, 2_000, tmp_path) + (64 << 20)


def test_alignments_are_not_written_over_what_is_read_or_written(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("A child .\n")
    (tmp_path / "prefixes").write_text("Ein\n")
    for name in ("in", "out", "prefixes"):
        command = [*("translate", "--model", str(model), "--prefixes", f"{tmp_path}/prefixes")]
        command += ["--alignments", f"{tmp_path}/{name}", "--overwrite"]
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()} | {"out": b""}
        with (tmp_path / "in").open() as source, (tmp_path / "out").open("w") as out:
            done = subprocess.run(
                [sys.executable, "-m", "edgewise", *command],
                **{"stdin": source, "stdout": out, "stderr": subprocess.PIPE, "text": True},
                check=False,
            )
        assert done.returncode == 2, done.stderr
        assert_mentions(done.stderr, "--alignments", tmp_path / name)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
