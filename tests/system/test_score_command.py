"""`edgewise score`: the numbers of translate itself; and what it says to bad lines."""

import gzip
import json
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from messages import assert_mentions
from tiny_model import Command, Process, Result, always, make_model, make_vocabulary, streams
from tiny_model import commands as cli

from edgewise.data.grammar import pairs
from edgewise.data.text import LONGEST_LINE
from edgewise.data.vocabulary import END, Vocabulary
from edgewise.decoding import Translator
from edgewise.decoding.settings import penalty
from edgewise.decoding.translator import EncodedTexts

USAGE, BAD_DATA, INPUT_OUTPUT = 2, 65, 74
SOURCES, TARGETS = (list(side) for side in zip(*pairs(30, 9), strict=True))
# Whatever stands in a line, it is a line.
STRANGE = [
    "a\x01b",
    "👍🏽",
    "مرحبا",
    "a\u2028b",
    "a\x85b",
    "▁a▁",
    "\uf8fe1",
    "a\rb",
    "  a  ",
    "[/b]",
]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="module")
def model(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("score") / "model", vocabulary)


@pytest.fixture(scope="module")
def another(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("another") / "model", vocabulary, seed=2)


class Score:
    """The command on files of the given lines, in this process."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model, self.command = folder, model, Command(folder)

    def __call__(
        self,
        *options: str | Path,
        source: Sequence[str] | bytes = SOURCES,
        target: Sequence[str] | bytes = TARGETS,
        models: tuple[Path, ...] = (),
    ) -> Result:
        return self.files(
            *options,
            source=self.write("test.en", source),
            target=self.write("test.de", target),
            models=models,
        )

    def write(self, name: str, lines: Sequence[str] | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(
            lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
        )
        return path

    def files(
        self,
        *options: str | Path,
        source: str | Path,
        target: str | Path,
        models: tuple[Path, ...] = (),
    ) -> Result:
        folders = models or (self.model,)
        files = ("--source", source, "--target", target)
        return self.command("score", "--model", *folders, *files, *options)


@pytest.fixture
def score(model: Path, tmp_path: Path) -> Score:
    return Score(tmp_path, model)


def numbers(result: Result) -> list[float]:
    return [float(line) for line in result.lines]


def records(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.lines]


# The numbers.


def translated(score: Score, *options: str | Path, models: tuple[Path, ...]) -> list[Any]:
    """The best translation of each source, as translate gives it."""
    stdin = "".join(f"{source}\n" for source in SOURCES)
    given = ("--model", *models, "--format", "jsonl", *options)
    result = score.command("translate", *given, stdin=stdin)
    assert result.code == 0
    return [record["translations"][0] for record in records(result)]


@pytest.mark.parametrize("how", [(), ("--beam", "1"), ("--sample",)], ids=" ".join)
@pytest.mark.parametrize("together", [False, True], ids=["one model", "two models"])
def test_numbers_are_those_that_translate_gave_to_its_own_output(
    score: Score, model: Path, another: Path, how: tuple[str, ...], together: bool
) -> None:
    models = (model, another) if together else (model,)
    # Given from beginning to end, so that a translation is split into pieces as it was made.
    prefixes = score.write("prefixes", TARGETS)
    best = translated(score, *how, "--prefixes", prefixes, "--max-length", "1", models=models)
    assert [each["text"] for each in best] == TARGETS
    found = records(score("--format", "jsonl", target=[x["text"] for x in best], models=models))
    for record, each in zip(found, best, strict=True):
        assert record["log_probability"] == pytest.approx(each["log_probability"], abs=1e-4)
        assert record["score"] == pytest.approx(each["score"], abs=1e-4)


def test_numbers_are_those_that_the_search_found(
    score: Score, model: Path, vocabulary: Vocabulary
) -> None:
    best = translated(score, "--max-length", "6", models=(model,))
    found = records(score("--format", "jsonl", target=[each["text"] for each in best]))
    # Text may be split into other pieces than those it was made of; then it is another's number.
    same = [
        (record["log_probability"], each["log_probability"])
        for record, each in zip(found, best, strict=True)
        if vocabulary.pieces(vocabulary.encode([each["text"]])[0]) == each["pieces"]
    ]
    assert len(same) > 2
    for ours, theirs in same:
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_the_number_of_a_model_of_constant_probabilities(
    score: Score, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    text = "der Mann"
    (tokens,) = vocabulary.encode([text])
    assert len(set(tokens)) == len(tokens)
    logits = {END: 1.5} | {token: i / 4 for i, token in enumerate(tokens)}
    folder = make_model(tmp_path / "m", vocabulary, change=always(logits))
    others = (vocabulary.size - len(logits)) * math.exp(-20)
    log_sum = math.log(sum(math.exp(logit) for logit in logits.values()) + others)
    expected = sum(logits.values()) - len(logits) * log_sum
    result = score(source=["any", "thing"], target=[text, ""], models=(folder,))
    assert numbers(result) == pytest.approx([expected, 1.5 - log_sum], abs=1e-5)


def test_formats_say_the_same(score: Score, vocabulary: Vocabulary) -> None:
    plain, table, objects = (score("--format", form) for form in ("text", "tsv", "jsonl"))
    assert [plain.code, table.code, objects.code] == [0, 0, 0]
    assert all(number < 0 for number in numbers(plain))
    rows = [line.split("\t") for line in table.lines]
    assert [row[0] for row in rows] == plain.lines
    lengths = [len(tokens) + 1 for tokens in vocabulary.encode(TARGETS)]
    for i, (row, record) in enumerate(zip(rows, records(objects), strict=True)):
        assert record.keys() == {"line", "log_probability", "score", "tokens"}
        assert (record["line"], record["tokens"]) == (i + 1, lengths[i])
        assert row == [
            f"{record['log_probability']:.6f}",
            f"{record['score']:.6f}",
            str(record["tokens"]),
        ]
        expected = record["log_probability"] / penalty(lengths[i], 0.6)  # the folder's
        assert record["score"] == pytest.approx(expected)


def test_the_penalty_is_the_folders(score: Score, vocabulary: Vocabulary, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", vocabulary, generation={"length_penalty": 0.0})
    for record in records(score("--format", "jsonl", models=(folder,))):
        assert record["score"] == record["log_probability"]


def test_a_number_does_not_depend_on_the_batch_the_order_or_its_neighbours(score: Score) -> None:
    plain = score("--format", "tsv").lines
    for tokens in ("1", "100", "100000"):
        assert score("--format", "tsv", "--batch-tokens", tokens).lines == plain
    order = random.Random(3).sample(range(30), 30)
    shuffled = [[side[i] for i in order] for side in (SOURCES, TARGETS)]
    result = score("--format", "tsv", source=shuffled[0], target=shuffled[1])
    assert result.lines == [plain[i] for i in order]
    assert score("--format", "tsv", source=SOURCES[4:5], target=TARGETS[4:5]).lines == plain[4:5]


def test_more_lines_than_are_scored_together_stay_in_order(score: Score) -> None:
    words = ["a", "the", "man", "child", "reads"]
    chosen = random.Random(5).choices(range(5), k=2100)
    plain = score(source=words, target=words[::-1]).lines
    result = score(source=[words[i] for i in chosen], target=[words[::-1][i] for i in chosen])
    assert result.lines == [plain[i] for i in chosen]
    assert_mentions(result.said, "2,100")


def test_a_model_with_itself_scores_as_alone(score: Score, model: Path) -> None:
    twice = score(models=(model, model))
    assert numbers(twice) == pytest.approx(numbers(score()), abs=1e-4)


def test_models_of_different_vocabularies_exit_with_2(
    score: Score, model: Path, tmp_path: Path
) -> None:
    foreign = make_model(tmp_path / "foreign", make_vocabulary(2))
    result = score(models=(model, foreign))
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, "vocabulary", foreign, model)


# Lines.


def test_any_characters_are_scored_and_disturb_no_other_line(score: Score) -> None:
    count = len(STRANGE)
    plain = score().lines[:count]
    source = [line for pair in zip(STRANGE, SOURCES, strict=False) for line in pair]
    target = [line for pair in zip(STRANGE, TARGETS, strict=False) for line in pair]
    result = score(source=source, target=target)
    assert result.code == 0
    assert result.lines[1::2] == plain
    assert all(-math.inf < number < 0 for number in numbers(result))


def test_empty_lines_have_numbers_too(score: Score) -> None:
    result = score(source=["", "a", "", " "], target=["", "", "b", " "])
    assert result.code == 0
    assert all(-math.inf < number < 0 for number in numbers(result))


def test_no_lines_give_no_numbers(score: Score) -> None:
    for form in ("text", "tsv", "jsonl"):
        result = score("--format", form, source=b"", target=b"")
        assert (result.code, result.out) == (0, b"")


def test_ends_of_lines_and_a_mark_at_the_beginning_make_no_difference(score: Score) -> None:
    plain = score().out
    source, target = ("\r\n".join(side).encode() for side in (SOURCES, TARGETS))
    assert score(source=source, target=target + b"\n").out == plain
    assert score(source=b"\xef\xbb\xbf" + source, target=gzip.compress(target)).out == plain


@pytest.mark.parametrize(
    ("source", "target", "facts"),
    [(2, 3, (2, 3)), (1500, 0, ("1,500", 0))],
)
def test_files_of_different_lengths_exit_with_65(
    score: Score, source: int, target: int, facts: tuple[object, ...]
) -> None:
    result = score(source=b"a\n" * source, target=b"a\n" * target)
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert_mentions(result.said, score.folder / "test.en", score.folder / "test.de")
    assert_mentions(result.said.replace(str(score.folder), ""), *facts)


BAD = {
    "not UTF-8": (b"abc\xff", ("UTF-8", "byte 4")),
    "NUL": (b"a\0b\0", ("NUL", "byte 2", "UTF-16")),
    "cut off": ("ä".encode()[:1], ("UTF-8", "byte 1")),
    "100,000 characters": (b"word " * 20_000, ("tokens", "1,024")),
    "two megabytes": (b"word " * (LONGEST_LINE // 2), (f"{LONGEST_LINE:,}",)),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("side", [0, 1], ids=["source", "target"])
def test_a_bad_line_is_named_and_gives_nan(score: Score, bad: str, side: int) -> None:
    content, facts = BAD[bad]
    plain = score().lines
    files = [[line.encode() for line in lines[:4]] for lines in (SOURCES, TARGETS)]
    files[side][2] = content
    source, target = (b"\n".join(lines) for lines in files)
    result = score(source=source, target=target)
    assert (result.code, result.lines) == (BAD_DATA, [*plain[:2], "nan", plain[3]])
    first, *_, last = result.said.splitlines()
    assert_mentions(first, "line 3", score.folder / ("test.en", "test.de")[side], *facts)
    assert last.startswith("edgewise: ")
    assert_mentions(last, 1, 4)


def test_a_bad_line_in_each_format(score: Score) -> None:
    given = {"source": b"a\n\xff\n", "target": b"a\nb\n"}
    rows = [line.split("\t") for line in score("--format", "tsv", **given).lines]
    assert rows[1] == ["nan", "nan", "0"]
    result = score("--format", "jsonl", **given)
    record = records(result)[1]
    assert record["line"] == 2
    assert_mentions(record["error"], "test.en", "UTF-8", "byte 1")
    assert result.code == BAD_DATA


def test_a_line_that_is_not_kept_whole_is_refused_whatever_is_allowed(
    score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    found = Translator.score

    def seen(self: Translator, sources: EncodedTexts, targets: EncodedTexts) -> Any:
        given.extend(sources.texts)
        return found(self, sources.without(range(2)), targets)

    monkeypatch.setattr(Translator, "score", seen)
    long = "a" * (2 * LONGEST_LINE)
    allowed = ("--max-source-tokens", str(4 * LONGEST_LINE))
    result = score(*allowed, source=[long, "b"], target=["a", "b"])
    assert given == ["", "b"]
    assert (result.code, result.lines[0]) == (BAD_DATA, "nan")
    assert_mentions(result.said, "line 1", f"{LONGEST_LINE:,}")


# Columns.


def test_columns_of_a_table_are_scored_as_files_are(score: Score) -> None:
    rows = [f"{i}\t{x}\t{y}" for i, (x, y) in enumerate(zip(SOURCES, TARGETS, strict=True))]
    table = score.write("a.tsv", rows)
    assert score.files(source=f"{table}:2", target=f"{table}:3").out == score().out


def test_a_row_without_the_column_is_named_and_gives_nan(score: Score) -> None:
    table = score.write("a.tsv", [f"{SOURCES[0]}\t{TARGETS[0]}", SOURCES[1]])
    result = score.files(source=f"{table}:1", target=f"{table}:2")
    assert (result.code, result.lines) == (BAD_DATA, [score().lines[0], "nan"])
    assert_mentions(result.said, "line 2", f"{table}:2", "column")


@pytest.mark.parametrize(
    ("name", "facts"),
    [("a.tsv", ("a.tsv", "column", "a.tsv:2")), ("a.tsv:0", ("a.tsv:0", 1))],
)
def test_a_table_needs_a_column(score: Score, name: str, facts: tuple[object, ...]) -> None:
    score.write("a.tsv", ["a\tb"])
    result = score.files(source=score.folder / name, target=score.folder / "a.tsv:2")
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said.replace(str(score.folder), ""), *facts)


# What else is refused.


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (("--taget", "x"), ("--taget", "--target")),
        (("--format", "xml"), ("--format", "xml")),
        (("--device", "nope"), ("--device", "auto", "cpu", "nope")),
        (("--batch-tokens", "0"), ("--batch-tokens", 1, 0)),
        (("--beam", "3"), ("--beam",)),
    ],
)
def test_a_setting_that_cannot_be_exits_with_2(
    score: Score, options: tuple[str, ...], facts: tuple[object, ...]
) -> None:
    result = score(*options)
    assert (result.code, result.out) == (USAGE, b"")
    assert_mentions(result.said, *facts)


def test_files_and_folders_that_are_not_there_exit_with_2(score: Score, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    result = score.files(source=nowhere, target=nowhere)
    (said,) = result.said.splitlines()
    assert (result.code, said.startswith("edgewise: ")) == (USAGE, True)
    assert_mentions(said, "file", nowhere)
    result = score(models=(nowhere,))
    (said,) = result.said.splitlines()
    assert (result.code, said.startswith("edgewise: ")) == (USAGE, True)
    assert_mentions(said, "model", nowhere)


def test_both_files_must_be_named(score: Score, model: Path) -> None:
    source = score.write("a.en", SOURCES)
    result = score.command("score", "--model", model, "--source", source)
    assert (result.code, result.out) == (USAGE, b"")
    assert "--target" in result.said


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_no_number_exits_with_65(
    score: Score, vocabulary: Vocabulary, tmp_path: Path, value: float
) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["encoder.1.feed_forward.inner.weight"][3, 5] = value

    result = score(models=(make_model(tmp_path / "m", vocabulary, change=damage),))
    assert (result.code, result.out) == (BAD_DATA, b"")
    assert "damaged" in result.said


# Streams.


def test_an_output_that_is_closed_exits_with_74(
    score: Score, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(score.write("a", SOURCES))
    with streams(stdout=None):
        code = cli.run(["score", "--model", str(model), "--source", source, "--target", source])
    assert code == INPUT_OUTPUT
    assert "edgewise: " in capsys.readouterr().err


def test_a_reader_that_has_gone_ends_the_command_in_peace(score: Score, model: Path) -> None:
    source = score.write("a", SOURCES)
    reader, writer = os.pipe()
    os.close(reader)
    files = ("--source", source, "--target", source)
    with Process("score", "--model", model, *files, stdout=writer) as process:
        os.close(writer)
        result = process.result()
    assert result.code == 0
    assert "edgewise:" not in result.said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_exits_with_74(score: Score, model: Path) -> None:
    source = score.write("a", SOURCES)
    files = ("--source", source, "--target", source)
    with (
        open("/dev/full", "wb") as full,
        Process("score", "--model", model, *files, stdout=full) as process,
    ):
        result = process.result()
    assert result.code == INPUT_OUTPUT
    assert_mentions(result.said, "No space left on device")
