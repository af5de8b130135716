"""`edgewise prepare` and `edgewise data`: exit codes, messages, and what is written."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from messages import assert_mentions

from edgewise.cli.main import run
from edgewise.data.corpus import Corpus
from edgewise.data.grammar import pairs

PAIRS = list(pairs(400))
Command = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a.en and a.de, valid.en and valid.de, which the commands run in."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("a", PAIRS), ("valid", PAIRS[:30])):
        for i, language in enumerate(("en", "de")):
            text = "".join(f"{pair[i]}\n" for pair in lines)
            (tmp_path / f"{name}.{language}").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process: its exit code, and what it says on stderr."""

    def run_it(*arguments: str) -> tuple[int, str]:
        code = run(list(arguments))
        stdout, stderr = capsys.readouterr()
        assert stdout == ""  # is for data
        assert "Traceback" not in stderr
        return code, stderr

    return run_it


@pytest.fixture
def prepare(command: Command) -> Command:
    """`edgewise prepare` of a.en and a.de with other options, which come last."""

    def run_it(*options: str, source: str = "a.en", target: str = "a.de") -> tuple[int, str]:
        size = () if {"--vocab-size", "--vocab"} & {*options} else ("--vocab-size", "400")
        out = () if "--out" in options else ("--out", "out")
        return command("prepare", "--source", source, "--target", target, *size, *out, *options)

    return run_it


def names() -> list[str]:
    return sorted(os.listdir())


def test_a_corpus_is_written_with_its_report(prepare: Command, place: Path) -> None:
    with (place / "a.en").open("a") as en, (place / "a.de").open("a") as de:
        en.write("\none\n\n")
        de.write("eins\n \n\n")
    code, said = prepare("--valid-source", "valid.en", "--valid-target", "valid.de")
    assert code == 0
    report = json.loads((place / "out" / "report.json").read_text())
    corpus = Corpus(place / "out")
    (train,), (valid,) = report["train"], report["valid"]
    assert train["dropped"] == {"empty": 3}
    assert (train["pairs"], train["kept"], train["weight"]) == (403, 400, 1.0)
    assert (train["source"], train["target"]) == ("a.en", "a.de")
    assert (valid["pairs"], valid["kept"], valid["dropped"]) == (30, 30, {})
    assert report["vocabulary"] == {"pieces": 400, "sha256": corpus.vocabulary.digest}
    source, target = corpus.train.lengths()
    assert (train["source_tokens"], train["target_tokens"]) == (source.sum(), target.sum())
    assert report["seconds"] > 0
    assert report["pairs_per_second"] > 0
    assert "out/report.json" in said
    for number in ("403", "400", "30", "3", f"{source.sum():,}", f"{target.sum():,}"):
        assert number in said.replace("│", " ").split()
    decode = corpus.vocabulary.decode
    assert tuple(decode(side.tolist()) for side in corpus.train.pair(399)) == PAIRS[399]


def test_several_files_packed_or_in_columns_have_their_weights(
    prepare: Command, place: Path
) -> None:
    (place / "a.en.gz").write_bytes(gzip.compress((place / "a.en").read_bytes()))
    table = "".join(f"{i}\t{en}\t{de}\n" for i, (en, de) in enumerate(PAIRS[:50]))
    (place / "b.tsv.gz").write_bytes(gzip.compress(table.encode()))
    code, _ = prepare(
        *("--source", "b.tsv.gz:2", "--target", "b.tsv.gz:3", "--weight", "1", "2.5"),
        source="a.en.gz",
    )
    assert code == 0
    corpus = Corpus(place / "out")
    assert [(part.source, part.target, part.pairs, part.weight) for part in corpus.train.parts] == [
        ("a.en.gz", "a.de", 400, 1.0),
        ("b.tsv.gz:2", "b.tsv.gz:3", 50, 2.5),
    ]
    for first, second in zip(corpus.train.pair(7), corpus.train.pair(407), strict=True):
        assert first.tolist() == second.tolist()


def test_a_vocabulary_is_taken_from_another_corpus(prepare: Command, place: Path) -> None:
    assert prepare("--out", "first")[0] == 0
    assert prepare("--vocab", "first", source="valid.en", target="valid.de")[0] == 0
    assert Corpus(place / "out").vocabulary.digest == Corpus(place / "first").vocabulary.digest


def test_a_process_of_its_own_does_the_same(place: Path) -> None:
    arguments = ["--source", "a.en", "--target", "a.de", "--vocab-size", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "edgewise", "prepare", *arguments, "--out", "out"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "out/report.json" in done.stderr
    assert run(["prepare", *arguments, "--out", "again"]) == 0
    assert Corpus(place / "out").digest == Corpus(place / "again").digest


def test_a_process_of_its_own_fails_with_the_code_and_without_a_traceback(place: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "edgewise", "prepare"),
            *("--source", "a.en", "--target", "valid.de", "--out", "out"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (65, "")
    _, said = done.stderr.splitlines()  # the first is progress
    assert said.startswith("edgewise: ")
    assert_mentions(said, "a.en", 400, "valid.de", 30)
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--vocab-sizes", "4"], ("--vocab-sizes", "--vocab-size")),
        (["--wieght", "2"], ("--wieght", "--weight")),
        (["--max-tokens", "many"], ("--max-tokens", "many")),
        (["--max-tokens", "0"], ("--max-tokens", 1, 0)),
        (["--workers", "-1"], ("--workers", 1, -1)),
        (["--seed", "-1"], ("--seed", 0, -1)),
        (["--vocab-size", "0"], ("--vocab-size", 1, 0)),
        (["--on-bad", "ignore"], ("--on-bad", "ignore")),
        (["--weight", "0"], ("--weight", 0, 1, "0.0")),
        (["--weight", "1", "2"], ("--weight", 1, "1.0", "2.0")),
        (["--source", "a.en"], ("--source", 2, "--target", 1)),
        (["--valid-source", "valid.en"], ("--valid-source", 1, "--valid-target", 0)),
        (["--source", "none.en", "--target", "a.de"], ("file", "none.en")),
        (["--valid-source", ".", "--valid-target", "a.de"], (".", "gzip", "folder")),
        (["--source", "a.en:0", "--target", "a.de"], ("a.en:0", 1)),
        (["--vocab", "a.en", "--vocab-size", "400"], ("--vocab", "--vocab-size")),
        (["--vocab", "none"], ("vocabulary", "none")),
    ],
)
def test_what_cannot_be_used_exits_with_2_and_writes_nothing(
    prepare: Command, options: list[str], facts: tuple[object, ...]
) -> None:
    before = names()
    code, said = prepare(*options)
    assert code == 2
    assert_mentions(said, *facts)
    assert said.startswith("edgewise: ")
    assert names() == before


def test_an_option_that_must_be_given_exits_with_2(command: Command) -> None:
    code, said = command("prepare", "--source", "a.en", "--target", "a.de")
    assert code == 2
    assert "--out" in said


def test_a_folder_that_exists_exits_with_2_unless_told_to_replace_it(
    prepare: Command, place: Path
) -> None:
    assert prepare()[0] == 0
    digest = Corpus(place / "out").digest
    valid = {"source": "valid.en", "target": "valid.de"}
    code, said = prepare("--vocab", "out", **valid)
    assert (code, len(said.splitlines())) == (2, 1)
    assert said.startswith("edgewise: ")
    assert_mentions(said, "out", "exists", "--overwrite")
    assert Corpus(place / "out").digest == digest
    assert prepare("--vocab", "out", "--overwrite", **valid)[0] == 0
    assert len(Corpus(place / "out").train) == 30


def test_a_folder_of_something_else_is_never_replaced(prepare: Command, place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "manifest.json").write_text("[]")
    code, said = prepare("--out", "mine", "--overwrite")
    assert code == 2
    assert_mentions(said, "mine", "corpus", "--overwrite")
    assert os.listdir("mine") == ["manifest.json"]


def test_a_vocabulary_too_large_exits_with_2_and_names_the_largest(prepare: Command) -> None:
    before = names()
    code, said = prepare("--vocab-size", "30000")
    assert code == 2
    error = said.partition("edgewise: ")[2]
    assert_mentions(error, 30000, "--vocab-size")
    assert names() == before
    largest = max(number for number in map(int, re.findall(r"\d+", error)) if number < 30000)
    assert prepare("--vocab-size", str(largest))[0] == 0


def test_different_line_counts_exit_with_65(prepare: Command) -> None:
    before = names()
    code, said = prepare(target="valid.de")
    assert code == 65
    assert_mentions(said, "a.en", 400, "valid.de", 30)
    assert names() == before


def test_a_bad_line_exits_with_65_if_told_to_stop(prepare: Command, place: Path) -> None:
    lines = (place / "a.de").read_bytes().split(b"\n")
    lines[16] = b"\xff"
    (place / "a.de").write_bytes(b"\n".join(lines))
    before = names()
    code, said = prepare("--on-bad", "error")
    assert code == 65
    assert_mentions(said, "line 17", "a.de", "UTF-8", "--on-bad drop")
    assert names() == before
    assert prepare("--on-bad", "drop")[0] == 0


def test_a_damaged_gzip_exits_with_65(prepare: Command, place: Path) -> None:
    packed = gzip.compress((place / "a.en").read_bytes())
    (place / "a.en.gz").write_bytes(packed[: len(packed) // 2])
    before = names()
    code, said = prepare(source="a.en.gz")
    assert code == 65
    assert_mentions(said, "a.en.gz", "damaged")
    assert names() == before


def test_a_file_that_is_no_vocabulary_exits_with_65(prepare: Command) -> None:
    code, said = prepare("--vocab", "a.en")
    assert code == 65
    assert_mentions(said, "a.en", "sentencepiece")


def test_a_place_that_cannot_be_written_exits_with_74(prepare: Command) -> None:
    before = names()
    code, said = prepare("--out", "a.en/out")
    assert code == 74
    assert said.splitlines()[-1].startswith("edgewise: ")
    assert "a.en" in said
    assert names() == before


@pytest.mark.parametrize("out", ["x[/b]", "x[red]y", "[bold]"])
def test_the_name_of_a_folder_is_no_markup(prepare: Command, place: Path, out: str) -> None:
    code, said = prepare("--out", out)
    assert code == 0
    assert_mentions(said.replace(f"{out}/report.json", ""), out, "400 pieces")
    assert_mentions(said, f"{out}/report.json")
    assert len(Corpus(place / out).train) == 400


def test_the_name_of_a_file_is_no_markup(prepare: Command, place: Path) -> None:
    (place / "a.en").rename(place / "[red]a.en")
    code, said = prepare(source="[red]a.en")
    assert code == 0
    assert_mentions(said, "[red]a.en")


def test_the_name_of_a_file_need_not_be_utf8(place: Path) -> None:
    name = os.fsdecode(b"a\xff.en")
    (place / "a.en").rename(place / name)
    # In a process of its own, whose stderr takes any name; that of the tests does not.
    done = subprocess.run(
        [
            *(sys.executable, "-m", "edgewise", "prepare", "--vocab-size", "400"),
            *("--source", name, "--target", "a.de", "--out", "out"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    assert Corpus(place / "out").train.parts[0].source == name


def test_the_folder_one_is_in_is_filled_or_refused(
    prepare: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    code, _ = prepare("--out", ".", source="../a.en", target="../a.de")
    assert code in (0, 2)
    written = ["corpus.json", "manifest.json", "report.json", "train", "vocabulary.model"]
    assert sorted(os.listdir(place / "here")) == (written if code == 0 else [])


@pytest.mark.parametrize("seed", [0, 5])
def test_generated_pairs_are_those_of_the_grammar(command: Command, place: Path, seed: int) -> None:
    code, said = command("data", "generate", "--pairs", "1200", "--out", "g/x", "--seed", str(seed))
    assert code == 0
    assert_mentions(said, "g/x.en", "g/x.de", "1,200 pairs")
    files = [(place / "g" / name).read_text(encoding="utf-8") for name in ("x.en", "x.de")]
    assert all(file.endswith("\n") for file in files)
    lines = [file.split("\n")[:-1] for file in files]
    assert list(zip(*lines, strict=True)) == list(pairs(1200, seed))


def test_another_seed_generates_other_pairs(command: Command, place: Path) -> None:
    for seed in ("1", "2"):
        assert command("data", "generate", "--pairs", "9", "--out", seed, "--seed", seed)[0] == 0
    assert (place / "1.en").read_text() != (place / "2.en").read_text()


@pytest.mark.parametrize("count", ["0", "-3"])
def test_no_pairs_cannot_be_generated(command: Command, count: str) -> None:
    before = names()
    code, said = command("data", "generate", "--pairs", count, "--out", "g")
    assert (code, len(said.splitlines())) == (2, 1)
    assert said.startswith("edgewise: ")
    assert_mentions(said, "--pairs", 1, count)
    assert names() == before


def test_pairs_that_cannot_be_written_exit_with_74(command: Command) -> None:
    assert command("data", "generate", "--pairs", "3", "--out", "a.en/g")[0] == 74


def test_the_name_of_generated_files_is_no_markup(command: Command, place: Path) -> None:
    code, said = command("data", "generate", "--pairs", "3", "--out", "g[/b]")
    assert code == 0
    assert_mentions(said, "g[/b].en", "g[/b].de", "3 pairs")


def test_generated_pairs_can_be_prepared(command: Command, prepare: Command, place: Path) -> None:
    assert command("data", "generate", "--pairs", "250", "--out", "g")[0] == 0
    assert prepare("--on-bad", "error", source="g.en", target="g.de")[0] == 0
    assert len(Corpus(place / "out").train) == 250


def test_generated_files_replace_others_only_if_asked(command: Command, place: Path) -> None:
    arguments = ("data", "generate", "--pairs", "3", "--out", "a")
    before = (place / "a.de").read_bytes()
    code, said = command(*arguments)
    assert (code, len(said.splitlines())) == (2, 1)
    assert said.startswith("edgewise: ")
    assert_mentions(said, "a.en", "exists", "--overwrite")
    assert (place / "a.de").read_bytes() == before
    assert command(*arguments, "--overwrite")[0] == 0
    assert (place / "a.de").read_bytes() != before


def test_a_corpus_of_which_much_is_dropped_is_warned_of(prepare: Command, place: Path) -> None:
    lines = (place / "a.de").read_bytes().splitlines(keepends=True)
    (place / "a.de").write_bytes(b"".join([b"\xe4" + line for line in lines[:50]] + lines[50:]))
    code, said = prepare()
    assert code == 0
    (warning,) = [line for line in said.splitlines() if "warning" in line]
    assert_mentions(warning, "12%", "a.en", "UTF-8")
