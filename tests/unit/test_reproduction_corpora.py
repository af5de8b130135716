"""The corpus of a scale: found, cut, hashed; what is not there or has changed is told."""

import gzip
from pathlib import Path

import pytest
from messages import assert_mentions, raises

from edgewise.data.corpus import Corpus
from edgewise.data.grammar import pairs
from edgewise.errors import DataError, SettingError
from edgewise.reproduction.corpora import bucket, texts_of
from edgewise.reproduction.scales import Files, Grammar, Scale, read_scale

LINES = list(pairs(400, seed=1))


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora that this machine may have are not looked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def scale_of(name: str, **changes: object) -> Scale:
    small = {"vocab_size": 400, **changes}
    return read_scale(name).model_copy(update=small)


def write(folder: Path, **names: slice) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in names.items():
        for i, language in enumerate(("en", "de")):
            text = "".join(f"{pair[i]}\n" for pair in LINES[lines])
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def write_all(folder: Path) -> None:
    write(folder, train=slice(0, 300), val=slice(300, 350), test_2016_flickr=slice(350, 400))


def silent(message: str) -> None: ...


def test_files_are_prepared_once_and_come_back(tmp_path: Path) -> None:
    write_all(tmp_path / "data")
    said: list[str] = []
    for _ in range(2):
        texts = texts_of(
            scale_of("multi30k"), "en-de", tmp_path / "data", tmp_path / "out", said.append
        )
        assert texts.part("valid") == LINES[300:350]
        assert texts.part("test") == LINES[350:400]
        assert len(Corpus(texts.corpus).train) == 300
        assert list(texts.files) == [
            *("train/train.en.gz", "train/train.de.gz", "valid/val.en.gz", "valid/val.de.gz"),
            *("test/test_2016_flickr.en.gz", "test/test_2016_flickr.de.gz"),
        ]
    (line,) = said
    assert_mentions(line, "multi30k", "en-de")
    assert not (texts.folder / "train.source").exists()


def test_the_names_of_edgewise_data_get_are_known_too(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "edgewise" / "multi30k"
    folder.parent.mkdir(parents=True)
    write(folder, train=slice(0, 300), valid=slice(300, 350), test=slice(350, 400))
    texts = texts_of(scale_of("multi30k"), "en-de", None, tmp_path / "out", silent)
    assert texts.part("test") == LINES[350:400]


def test_a_corpus_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    remedies = "--data", "edgewise data get multi30k"
    with raises(SettingError, tmp_path / "cache" / "edgewise", *remedies):
        texts_of(scale_of("multi30k"), "en-de", None, out, silent)
    with raises(SettingError, data, *remedies):
        texts_of(scale_of("multi30k"), "en-de", data, out, silent)
    write(data, train=slice(0, 300), val=slice(300, 350))
    with raises(SettingError, data, "test_2016_flickr.en.gz", "test", *remedies):
        texts_of(scale_of("multi30k"), "en-de", data, out, silent)
    (data / "val.de.gz").unlink()
    with raises(SettingError, data, "val.en.gz", "valid", *remedies):
        texts_of(scale_of("multi30k"), "en-de", data, out, silent)
    with raises(SettingError, "europarl-short", "Europarl", "--data"):
        texts_of(scale_of("europarl-short"), "en-de", None, out, silent)
    assert not out.exists()


def test_a_corpus_that_has_changed_is_told_by_its_file(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_all(data)
    texts_of(scale_of("multi30k"), "en-de", data, out, silent)
    write(data, val=slice(299, 350))
    with raises(DataError, out, "valid/val.de.gz", "--out"):
        texts_of(scale_of("multi30k"), "en-de", data, out, silent)
    write_all(data)
    texts_of(scale_of("multi30k"), "en-de", data, out, silent)


def test_a_folder_in_the_place_of_a_prepared_corpus_is_not_replaced(tmp_path: Path) -> None:
    scale = read_scale("demo")
    scale = scale.model_copy(update={"grammar": Grammar(train=9, valid=3, test=3)})
    folder = tmp_path / "work" / "corpora" / "demo-en-de"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with raises(SettingError, folder):
        texts_of(scale, "en-de", None, tmp_path, silent)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_corpus_that_is_to_be_prepared_otherwise_is_not_taken_for_it(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_all(data)
    texts_of(scale_of("multi30k"), "en-de", data, out, silent)
    with raises(SettingError, out, "vocab_size", 400, 401, "--out"):
        texts_of(scale_of("multi30k", vocab_size=401), "en-de", data, out, silent)
    with raises(SettingError, out, "max_source_words", None, 7, "--out"):
        texts_of(scale_of("multi30k", max_source_words=7), "en-de", data, out, silent)


def test_files_of_one_name_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    files = {part: (part + "/{language}.gz",) for part in ("train", "valid", "test")}
    scale = scale_of("multi30k", files=Files(**files))
    for part, lines in (("train", LINES[:300]), ("valid", LINES[300:350]), ("test", LINES[350:])):
        (data / part).mkdir(parents=True)
        for i, language in enumerate(("en", "de")):
            text = "".join(f"{pair[i]}\n" for pair in lines)
            (data / part / f"{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    assert len(texts_of(scale, "en-de", data, out, silent).files) == 6
    (data / "test" / "de.gz").write_bytes(gzip.compress(b"anders\n" * 50))
    with raises(DataError, out, "test/test/de.gz", "--out"):
        texts_of(scale, "en-de", data, out, silent)


def test_a_carriage_return_ends_no_line(tmp_path: Path) -> None:
    write_all(tmp_path)
    path = tmp_path / "val.de.gz"
    lines = gzip.decompress(path.read_bytes()).replace(b" ", b"\r", 1)
    path.write_bytes(gzip.compress(lines))
    texts = texts_of(scale_of("multi30k"), "en-de", tmp_path, tmp_path / "out", silent)
    assert texts.part("valid")[0][1] == LINES[300][1].replace(" ", "\r", 1)
    assert len(texts.part("valid")) == 50


def test_a_part_without_a_sentence_is_told(tmp_path: Path) -> None:
    write_all(tmp_path)
    write(tmp_path, test_2016_flickr=slice(0, 0))
    with raises(DataError, "test", "multi30k"):
        texts_of(scale_of("multi30k"), "en-de", tmp_path, tmp_path / "out", silent)


@pytest.mark.parametrize(("line", "reason"), [(b"", "empty"), (b"\xff", "UTF-8")])
def test_a_line_to_be_measured_on_that_cannot_be_used_is_told(
    line: bytes, reason: str, tmp_path: Path
) -> None:
    write_all(tmp_path)
    for language, added in (("en", line), ("de", b"ja")):
        path = tmp_path / f"val.{language}.gz"
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + added + b"\n"))
    with raises(DataError, "line 51", tmp_path / "val.en.gz", reason):
        texts_of(scale_of("multi30k"), "en-de", tmp_path, tmp_path / "out", silent)


def test_files_of_other_lengths_are_told(tmp_path: Path) -> None:
    write_all(tmp_path)
    path = tmp_path / "val.en.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"one more\n"))
    with raises(DataError, path, 51, tmp_path / "val.de.gz", 50):
        texts_of(scale_of("multi30k"), "en-de", tmp_path, tmp_path / "out", silent)


def test_splits_of_words_are_undone(tmp_path: Path) -> None:
    for part, lines in (("train", LINES[:300]), ("valid", LINES[300:350]), ("test.2016", LINES)):
        for i, language in enumerate(("en", "de")):
            split = "".join(pair[i][:3] + "@@ " + pair[i][3:] + "\n" for pair in lines)
            (tmp_path / f"{part}.{language}").write_text(split, encoding="utf-8")
    texts = texts_of(scale_of("multi30k-wu2021"), "en-de", tmp_path, tmp_path / "out", silent)
    assert texts.part("valid") == LINES[300:350]
    corpus = Corpus(texts.corpus)
    source, target = (corpus.vocabulary.decode(side.tolist()) for side in corpus.train.pair(7))
    assert (source, target) == LINES[7]


def test_what_is_too_long_to_train_on_is_tested_on(tmp_path: Path) -> None:
    write_all(tmp_path)
    scale = scale_of("multi30k-short", max_source_words=6, buckets=(6, 8, 20), held_out=5)
    texts = texts_of(scale, "en-de", tmp_path, tmp_path / "out", silent)
    words = [len(source.split()) for source, _ in LINES]
    assert len(Corpus(texts.corpus).train) == sum(count <= 6 for count in words[:300])
    test = texts.part("test")
    assert test[:50] == LINES[350:400]
    assert test[50:] == [
        pair
        for i, pair in enumerate(LINES[:300])
        if words[i] > 6
        and sum(bucket(w, (6, 8, 20)) == bucket(words[i], (6, 8, 20)) for w in words[:i]) < 5
        and words[i] <= 20
    ]


def test_columns_of_tab_separated_files(tmp_path: Path) -> None:
    for name in ("train.tsv", "dev.q4-2000.tsv"):
        text = "".join(f"2000\t{source}\t{target}\n" for source, target in LINES)
        (tmp_path / name).write_text(text, encoding="utf-8")
    scale = scale_of("europarl-short", max_source_words=6, buckets=(6, 30), held_out=10)
    texts = texts_of(scale, "en-de", tmp_path, tmp_path / "out", silent)
    assert texts.part("valid") == LINES
    assert len(texts.part("test")) == len(LINES) + 10


def test_of_the_built_in_corpus_no_test_sentence_is_trained_on(tmp_path: Path) -> None:
    demo = read_scale("demo")
    assert demo.grammar is not None
    grammar = demo.grammar.model_copy(update={"train": 2000, "valid": 30, "test": 40})
    scale = demo.model_copy(update={"grammar": grammar, "vocab_size": 500})
    texts = texts_of(scale, "en-de", None, tmp_path / "out", silent)
    corpus = Corpus(texts.corpus)
    trained = {
        corpus.vocabulary.decode(corpus.train.pair(i)[0].tolist()) for i in range(len(corpus.train))
    }
    assert len(texts.part("valid")) == 30
    assert len(texts.part("test")) == 40
    assert not trained & {source for source, _ in texts.part("test")}


def test_buckets_by_hand() -> None:
    assert [bucket(words, (12, 16)) for words in (0, 12, 13, 16, 17)] == [0, 0, 1, 1, 2]
