"""From text files to a corpus: every pair is kept or counted, and the result is whole or absent."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import assert_mentions, raises

from edgewise.data import encode
from edgewise.data import prepare as preparing
from edgewise.data.corpus import KIND, VERSION, Corpus, token_type
from edgewise.data.encode import BLOCK
from edgewise.data.grammar import pairs
from edgewise.data.prepare import Bitext, prepare
from edgewise.data.text import LONGEST_LINE, TextFile
from edgewise.data.vocabulary import Vocabulary
from edgewise.errors import DataError, SettingError
from edgewise.storage import MANIFEST, read_json, seal

PAIRS = list(pairs(300))
GOOD = (b"one", b"eins")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train((line for pair in PAIRS for line in pair), 450)


def write(path: Path, lines: Iterable[bytes]) -> TextFile:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return TextFile(path)


def bitext(
    folder: Path, lines: Sequence[tuple[bytes, bytes]], name: str = "a", weight: float = 1.0
) -> Bitext:
    """Two files of these pairs."""
    source = write(folder / f"{name}.en", (pair[0] for pair in lines))
    target = write(folder / f"{name}.de", (pair[1] for pair in lines))
    return Bitext(source, target, weight)


def utf8(lines: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(source.encode(), target.encode()) for source, target in lines]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def contents(folder: Path) -> dict[str, bytes]:
    """All but what tells the time that it took."""
    return {
        name: (folder / name).read_bytes()
        for name in names(folder)
        if (folder / name).is_file() and name not in ("report.json", "manifest.json")
    }


def decoded(corpus: Corpus) -> list[tuple[str, ...]]:
    return [
        tuple(corpus.vocabulary.decode(side.tolist()) for side in corpus.train.pair(i))
        for i in range(len(corpus.train))
    ]


def test_every_pair_is_kept_or_counted_by_its_reason(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    long = b" ".join([b"one"] * 40)
    plain = [
        *[GOOD] * 11,
        *[(b"", b"eins"), (b"one", b"")],
        *[(b" \t ", b"eins"), (b"one", "\u3000\u2028".encode()), (b"\r\r", b"eins")],
        *[(b"\xff", b"eins"), (b"one", b"\xc3"), (b"one", b"\xed\xa0\x80"), (b"\xc0\xaf", b"eins")],
        *[(long, b"eins"), (b"one", long), (long, long), (long, b"zwei"), (b"two", long)],
        (b"x" * (LONGEST_LINE + 1), b"eins"),
        *[(b"o\0n\0e\0", b"eins"), (b"one", b"\0")],
    ]
    table = [b"one\teins", *[b"alone"] * 7, b"two\tzwei\tmore"]
    columns = tmp_path / "b.tsv"
    write(columns, table)
    report = prepare(
        tmp_path / "out",
        [bitext(tmp_path, plain), Bitext(TextFile(columns, 1), TextFile(columns, 2))],
        vocab=vocabulary,
        max_tokens=30,
    )
    first, second = report["train"]
    reasons = {"empty": 2 + 3, "invalid UTF-8": 4, "too long": 5 + 1, "NUL character (UTF-16?)": 2}
    assert first["dropped"] == reasons
    assert second["dropped"] == {"no such column": 7}
    assert (first["pairs"], first["kept"]) == (28, 11)
    assert (second["pairs"], second["kept"]) == (9, 2)
    for part in report["train"]:
        assert part["kept"] + sum(part["dropped"].values()) == part["pairs"]
    expected = [("one", "eins")] * 12 + [("two", "zwei")]
    assert decoded(Corpus(tmp_path / "out")) == expected


@pytest.mark.parametrize("max_tokens", [1, 7, 13])
def test_a_sentence_may_have_as_many_tokens_as_allowed_and_no_more(
    tmp_path: Path, vocabulary: Vocabulary, max_tokens: int
) -> None:
    lines = [(" ".join(["the"] * i), " ".join(["the"] * j)) for i in range(1, 15) for j in (1, i)]
    report = prepare(
        *(tmp_path / "out", [bitext(tmp_path, utf8(lines))]),
        vocab=vocabulary,
        max_tokens=max_tokens,
    )
    assert [len(tokens) for tokens in vocabulary.encode(["the", "the the"])] == [1, 2]
    part = report["train"][0]
    assert (part["kept"], part["dropped"]) == (2 * max_tokens, {"too long": 2 * (14 - max_tokens)})
    assert part["longest_source"] == part["longest_target"] == max_tokens


BAD_PAIRS = {
    "an empty target": ((b"one", b""), "a.de", ("empty",)),
    "an empty source": ((b"", b"eins"), "a.en", ("empty",)),
    "both": ((b"", b"\xff"), "a.en", ("empty",)),
    "invalid UTF-8": ((b"one", b"\xff"), "a.de", ("invalid UTF-8",)),
    "a NUL character": ((b"one", b"e\0"), "a.de", ("NUL", "UTF-16")),
    "too long": ((b"the " * 9, b"eins"), "a.en", ("too long", "8 tokens")),
}


@pytest.mark.parametrize("case", BAD_PAIRS)
@pytest.mark.parametrize("number", [1, 3, BLOCK + 7])
def test_a_bad_pair_is_named_by_file_line_and_reason(
    tmp_path: Path, vocabulary: Vocabulary, case: str, number: int
) -> None:
    bad, file, reasons = BAD_PAIRS[case]
    lines = [(b"the", b"the")] * (BLOCK + 20)
    lines[number - 1] = lines[BLOCK + 11] = bad
    train = [bitext(tmp_path, lines)]
    before = names(tmp_path)
    facts = (f"line {number:,}", tmp_path / file, *reasons, "--on-bad drop")
    with raises(DataError, *facts):
        prepare(tmp_path / "out", train, vocab=vocabulary, max_tokens=8, on_bad="error")
    assert names(tmp_path) == before


def test_the_first_bad_pair_is_named_whatever_its_reason(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    # Whether a sentence has too many tokens is known after what else may be wrong.
    lines = [GOOD, (b"the " * 40, b"eins"), (b"", b"eins"), (b"one", b"the " * 40)]
    with raises(DataError, "line 2", tmp_path / "a.en", "too long"):
        prepare(
            *(tmp_path / "out", [bitext(tmp_path, lines)]),
            vocab=vocabulary,
            max_tokens=30,
            on_bad="error",
        )


def test_without_bad_pairs_it_is_the_same_to_drop_them_or_to_stop(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    train = [bitext(tmp_path, utf8(PAIRS[:50]))]
    reports = [
        prepare(tmp_path / on_bad, train, vocab=vocabulary, on_bad=on_bad)["train"]
        for on_bad in ("drop", "error")
    ]
    assert reports[0] == reports[1]
    assert contents(tmp_path / "drop") == contents(tmp_path / "error")


@pytest.mark.parametrize("split", ["train", "valid"])
def test_files_of_different_lengths_are_told_with_both_counts_and_nothing_is_written(
    tmp_path: Path, split: str
) -> None:
    good = bitext(tmp_path, utf8(PAIRS), "good")
    unequal = Bitext(
        write(tmp_path / "a.en", [b"one"] * 1203), write(tmp_path / "a.de", [b"e"] * 7)
    )
    files = {"train": [good], "valid": [good]}
    files[split] = [good, unequal]
    before = names(tmp_path)
    with raises(DataError, tmp_path / "a.en", tmp_path / "a.de") as error:
        prepare(tmp_path / "deep" / "out", files["train"], files["valid"], vocab=450)
    # The path may have any number in it.
    assert_mentions(str(error.value).replace(str(tmp_path), ""), "1,203", 7)
    assert names(tmp_path) == before


def test_the_result_is_the_same_bytes_whatever_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 500  # small, so that there are more blocks than the queue holds
    monkeypatch.setattr(encode, "BLOCK", block)
    lines = utf8(pairs(7 * block + 300))
    lines[17] = lines[block] = (b"", b"eins")
    lines[2 * block + 5] = (b"one", b"\xff")
    train, valid = [bitext(tmp_path, lines)], [bitext(tmp_path, lines[:31], "valid")]
    reports = [
        prepare(tmp_path / str(workers), train, valid, vocab=600, workers=workers)
        for workers in (1, 2)
    ]
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(contents(tmp_path / "1")) == 6  # two splits of two files, vocabulary, corpus.json
    assert reports[0]["train"] == reports[1]["train"]
    assert reports[0]["train"][0]["dropped"] == {"empty": 2, "invalid UTF-8": 1}
    corpus = Corpus(tmp_path / "2")
    kept = [pair for i, pair in enumerate(lines) if i not in (17, block, 2 * block + 5)]
    for i in (0, 16, 17, block - 1, block, 2 * block, len(kept) - 1):
        found = (corpus.vocabulary.decode(side.tolist()).encode() for side in corpus.train.pair(i))
        assert tuple(found) == kept[i]


def test_several_corpora_keep_their_order_and_weights(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    train = [
        bitext(tmp_path, [*utf8(PAIRS[:5]), (b"", b"")], "a", 2.5),
        bitext(tmp_path, utf8(PAIRS[5:12]), "b"),
        bitext(tmp_path, utf8(PAIRS[12:14]), "c", 0.25),
    ]
    report = prepare(tmp_path / "out", train, vocab=vocabulary)
    about = read_json(tmp_path / "out" / "corpus.json")
    files = [tmp_path / f"{name}.{language}" for name in "abc" for language in ("en", "de")]
    assert about["splits"] == {
        "train": [
            {"source": str(files[0]), "target": str(files[1]), "pairs": 5, "weight": 2.5},
            {"source": str(files[2]), "target": str(files[3]), "pairs": 7, "weight": 1.0},
            {"source": str(files[4]), "target": str(files[5]), "pairs": 2, "weight": 0.25},
        ]
    }
    assert (about["dtype"], about["max_tokens"]) == ("uint16", 256)
    corpus = Corpus(tmp_path / "out")
    assert [(part.pairs, part.weight) for part in corpus.train.parts] == [
        (5, 2.5),
        (7, 1.0),
        (2, 0.25),
    ]
    assert decoded(corpus) == PAIRS[:14]
    assert corpus.valid is None
    assert [part["pairs"] for part in report["train"]] == [6, 7, 2]


def test_names_of_files_tell_the_languages_of_a_corpus_if_they_agree(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    a, b = (bitext(tmp_path, utf8(PAIRS[:3]), name) for name in "ab")
    other = Bitext(a.source, write(tmp_path / "c.fr", (target.encode() for _, target in PAIRS[:3])))
    plain = Bitext(write(tmp_path / "d.txt", [b"x", b"y", b"z"]), a.target)
    for i, (train, expected) in enumerate(
        [([a, b], ("en", "de")), ([a, other], None), ([other], ("en", "fr")), ([plain], None)]
    ):
        prepare(tmp_path / str(i), train, vocab=vocabulary)
        assert Corpus(tmp_path / str(i)).languages == expected


def test_a_corpus_opens_to_the_lines_it_was_made_from(tmp_path: Path) -> None:
    strange = [("\u2581 \uf8fe1 ", "\u2028x\x01"), (" <s> ", "①\ty")]
    lines = [*PAIRS, *strange]
    valid = [bitext(tmp_path, utf8(PAIRS[7:20]), "valid")]
    report = prepare(tmp_path / "out", [bitext(tmp_path, utf8(lines))], valid, vocab=450)
    corpus = Corpus(tmp_path / "out")
    assert decoded(corpus) == lines
    assert corpus.valid is not None
    assert len(corpus.valid) == 13
    last = corpus.valid.pair(12)
    assert tuple(corpus.vocabulary.decode(side.tolist()) for side in last) == PAIRS[19]
    assert corpus.vocabulary.size == report["vocabulary"]["pieces"] == 450
    assert corpus.vocabulary.digest == report["vocabulary"]["sha256"]
    assert report == read_json(tmp_path / "out" / "report.json")


def test_lengths_are_those_of_the_pairs_and_of_the_report(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    report = prepare(tmp_path / "out", [bitext(tmp_path, utf8(PAIRS))], vocab=vocabulary)
    corpus = Corpus(tmp_path / "out")
    source, target = corpus.train.lengths()
    encoded = [vocabulary.encode(pair) for pair in PAIRS]
    np.testing.assert_array_equal(source, [len(pair[0]) for pair in encoded])
    np.testing.assert_array_equal(target, [len(pair[1]) for pair in encoded])
    part = report["train"][0]
    assert (part["source_tokens"], part["target_tokens"]) == (source.sum(), target.sum())
    assert (part["longest_source"], part["longest_target"]) == (source.max(), target.max())


def test_what_exists_is_refused_and_left_as_it_was(tmp_path: Path, vocabulary: Vocabulary) -> None:
    train = [bitext(tmp_path, utf8(PAIRS[:9]))]
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    for overwrite in (False, True):
        with raises(SettingError, out, "--overwrite"):
            prepare(out, train, vocab=vocabulary, overwrite=overwrite)
    assert names(out) == ["mine"]


def test_a_corpus_is_replaced_only_when_told_to(tmp_path: Path, vocabulary: Vocabulary) -> None:
    out = tmp_path / "out"
    prepare(out, [bitext(tmp_path, utf8(PAIRS[:9]))], vocab=vocabulary)
    before = contents(out)
    others = [bitext(tmp_path, utf8(PAIRS[9:20]), "others")]
    with raises(SettingError, out, "--overwrite"):
        prepare(out, others, vocab=vocabulary)
    with pytest.raises(DataError):
        prepare(out, [bitext(tmp_path, [(b"", b"")], "bad")], vocab=vocabulary, overwrite=True)
    assert contents(out) == before
    prepare(out, others, vocab=vocabulary, overwrite=True)
    assert decoded(Corpus(out)) == PAIRS[9:20]


def test_a_vocabulary_can_be_used_again(tmp_path: Path) -> None:
    prepare(tmp_path / "first", [bitext(tmp_path, utf8(PAIRS))], vocab=450)
    again = Vocabulary.load(tmp_path / "first")
    others = [("Größe ①", "two"), ("three", "four")]
    prepare(tmp_path / "second", [bitext(tmp_path, utf8(others), "b")], vocab=again)
    second = Corpus(tmp_path / "second")
    assert second.vocabulary.digest == again.digest
    assert decoded(second) == others


def test_many_pairs_teach_the_vocabulary_by_a_sample_of_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = [
        bitext(tmp_path, utf8(PAIRS[:190]), "a"),
        bitext(tmp_path, [*utf8(PAIRS[190:]), (b"\xff", b"")], "b"),
    ]
    counts = [190, 111]
    everything = {preparing.learn(train, counts, 400, seed).digest for seed in (0, 1)}
    monkeypatch.setattr(preparing, "SAMPLE", 130)
    samples = [preparing.learn(train, counts, 400, seed).digest for seed in (0, 1, 2, 0, 1, 2)]
    assert len(everything) == 1
    assert samples[:3] == samples[3:]
    assert len({*samples, *everything}) == 4


ALL_BAD = [(b"", b"eins"), (b"\xff", b"eins"), (b"one", b" "), (b"x y z " * 30, b"eins")]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_files_of_which_no_pair_can_be_used_are_refused_with_the_reasons(
    tmp_path: Path, vocabulary: Vocabulary, split: str
) -> None:
    files = {name: [bitext(tmp_path, utf8(PAIRS), name)] for name in ("train", "valid")}
    files[split] = [bitext(tmp_path, ALL_BAD)]
    before = names(tmp_path)
    with raises(DataError, split, "empty", 2, "invalid UTF-8", "too long", 1):
        prepare(
            *(tmp_path / "out", files["train"], files["valid"]), vocab=vocabulary, max_tokens=50
        )
    assert names(tmp_path) == before


@pytest.mark.parametrize("lines", [[], ALL_BAD[:3]], ids=["empty files", "bad pairs"])
def test_no_usable_pair_is_said_so_even_if_a_vocabulary_must_be_learnt(
    tmp_path: Path, lines: list[tuple[bytes, bytes]]
) -> None:
    train = [bitext(tmp_path, lines)]
    before = names(tmp_path)
    with pytest.raises(DataError) as error:
        prepare(tmp_path / "out", train, vocab=450)
    assert "trainer_interface" not in str(error.value)
    assert names(tmp_path) == before


def test_empty_files_are_refused(tmp_path: Path, vocabulary: Vocabulary) -> None:
    train = [bitext(tmp_path, [])]
    with raises(DataError, "train", "empty"):
        prepare(tmp_path / "out", train, vocab=vocabulary)
    assert names(tmp_path) == ["a.de", "a.en"]


def test_an_empty_file_beside_another_is_a_part_without_pairs(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    train = [
        bitext(tmp_path, [], "empty"),
        bitext(tmp_path, utf8(PAIRS[:3])),
        bitext(tmp_path, [(b"", b"")], "bad"),
    ]
    prepare(tmp_path / "out", train, vocab=vocabulary)
    corpus = Corpus(tmp_path / "out")
    assert [part.pairs for part in corpus.train.parts] == [0, 3, 0]
    assert decoded(corpus) == PAIRS[:3]


DAMAGED = "vocabulary.model", "corpus.json", "train/tokens.bin", "train/offsets.bin"


@pytest.mark.parametrize("name", DAMAGED)
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, vocabulary: Vocabulary, name: str) -> None:
    prepare(tmp_path / "out", [bitext(tmp_path, utf8(PAIRS[:9]))], vocab=vocabulary)
    path = tmp_path / "out" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with raises(DataError, tmp_path / "out", "damaged", name):
        Corpus(tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ("null", ("corpus.json", "table", "None")),
        ("{}", ("corpus.json", "dtype", "splits", "set")),
        ('{"dtype": "uint16", "splits": {}}', ("corpus.json", "splits.train", "set")),
        ('{"dtype": "object", "splits": {}}', ("corpus.json", "dtype", "'uint16'", "'object'")),
        ('{"dtype": "uint16", "splits": {"test": []}}', ("corpus.json", "splits.test", "'train'")),
        ('{"dtype": "uint16", "splits": {"train": [[]]}}', ("corpus.json", "splits.train.0")),
        (None, ("vocabulary.model",)),
    ],
    ids=range(7),
)
def test_a_corpus_whose_description_is_wrong_is_told_why(
    content: str | None, facts: tuple[object, ...], tmp_path: Path, vocabulary: Vocabulary
) -> None:
    out = tmp_path / "out"
    prepare(out, [bitext(tmp_path, utf8(PAIRS[:9]))], vocab=vocabulary)
    if content is None:
        (out / "vocabulary.model").unlink()
    else:
        (out / "corpus.json").write_text(content)
    (out / MANIFEST).unlink()
    seal(out, KIND, VERSION)
    with raises(DataError, out, *facts) as error:
        Corpus(out)
    assert len(str(error.value).splitlines()) == 1


def test_names_of_files_and_folders_need_not_be_utf8(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    folder = tmp_path / os.fsdecode(b"not-utf8-\xff")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"names must be UTF-8 here: {error}")
    prepare(folder / "out", [bitext(folder, utf8(PAIRS[:9]))], vocab=vocabulary)
    corpus = Corpus(folder / "out")
    assert Path(corpus.train.parts[0].source).parent == folder
    assert decoded(corpus) == PAIRS[:9]


def test_counting_ends_when_one_of_the_files_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocks(file: TextFile) -> Iterator[bytes]:
        if file.path.name == "a.en":
            raise DataError("damaged")
        while True:
            yield b"line\n"

    monkeypatch.setattr(TextFile, "_blocks", blocks)
    with raises(DataError, "damaged"):
        preparing.count_pairs([Bitext(TextFile(tmp_path / "a.en"), TextFile(tmp_path / "a.de"))])


def test_a_folder_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    with raises(DataError, tmp_path, "corpus", MANIFEST):
        Corpus(tmp_path)


def test_the_digest_is_of_what_training_sees(tmp_path: Path, vocabulary: Vocabulary) -> None:
    (tmp_path / "moved").mkdir()
    first = bitext(tmp_path, utf8(PAIRS[:9]))
    moved = Bitext(
        *(
            TextFile(Path(shutil.copy(file.path, tmp_path / "moved")))
            for file in (first.source, first.target)
        )
    )
    other = Vocabulary.train((line for pair in PAIRS for line in pair), 451)

    def digest(train: Bitext, vocab: Vocabulary = vocabulary, **options: Any) -> str:
        out = tmp_path / "out"
        prepare(out, [train], vocab=vocab, overwrite=True, **options)
        return Corpus(out).digest

    same = {digest(first), digest(first), digest(moved), digest(first, max_tokens=999)}
    assert len(same) == 1
    others = [
        digest(Bitext(first.source, first.target, 2.0)),
        digest(Bitext(first.target, first.source)),
        digest(bitext(tmp_path, utf8(PAIRS[:8]), "fewer")),
        digest(first, other),
    ]
    assert len({*same, *others}) == 5


@pytest.mark.parametrize(("size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_tokens_are_as_wide_as_the_vocabulary_needs(
    vocabulary: Vocabulary, size: int, dtype: type[np.generic]
) -> None:
    class Large(Vocabulary):
        size = 0

    Large.size = size
    assert token_type(Large(vocabulary.model)) == dtype
