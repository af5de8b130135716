"""The corpus of a scale: found, split, hashed; errors name what is missing or has changed."""

import gzip
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from messages import assert_mentions, raises

from edgewise.data.corpus import Corpus
from edgewise.data.grammar import pairs
from edgewise.errors import DataError, SettingError
from edgewise.reproduction.corpora import lines_of, prepare_corpus
from edgewise.reproduction.scales import Commands, Files, Grammar, TranslationScale, read_scale
from edgewise.reproduction.task import PreparedData

LINES = list(pairs(400, seed=1))


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora that this machine may have are not looked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def scale_of(name: str, **changes: object) -> TranslationScale:
    scale = read_scale(name)
    assert isinstance(scale, TranslationScale)
    return scale.model_copy(update={"vocab_size": 400, **changes})


def part(data: PreparedData, name: str) -> list[tuple[str, str]]:
    sides = (lines_of(data.folder / f"{name}.{side}") for side in ("source", "target"))
    return list(zip(*sides, strict=True))


def corpus_of(data: PreparedData) -> Corpus:
    return Corpus(data.folder / "corpus")


def trained(data: PreparedData) -> list[tuple[str, str]]:
    corpus = corpus_of(data)
    decoded = (
        [corpus.vocabulary.decode(side.tolist()) for side in corpus.train.pair(i)]
        for i in range(len(corpus.train))
    )
    return [(source, target) for source, target in decoded]


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
        prepared = prepare_corpus(
            scale_of("multi30k"), "en-de", tmp_path / "data", tmp_path / "out", said.append
        )
        assert part(prepared, "valid") == LINES[300:350]
        assert part(prepared, "test") == LINES[350:400]
        assert len(corpus_of(prepared).train) == 300
        assert list(prepared.files) == [
            *("train/train.en.gz", "train/train.de.gz", "valid/val.en.gz", "valid/val.de.gz"),
            *("test/test_2016_flickr.en.gz", "test/test_2016_flickr.de.gz"),
        ]
    (line,) = said
    assert_mentions(line, "multi30k", "en-de")
    assert not (prepared.folder / "train.source").exists()


def test_the_names_of_edgewise_data_get_are_known_too(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "edgewise" / "multi30k"
    folder.parent.mkdir(parents=True)
    write(folder, train=slice(0, 300), valid=slice(300, 350), test=slice(350, 400))
    prepared = prepare_corpus(scale_of("multi30k"), "en-de", None, tmp_path / "out", silent)
    assert part(prepared, "test") == LINES[350:400]


def test_a_corpus_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    remedies = "--data", "edgewise data get multi30k"
    with raises(SettingError, tmp_path / "cache" / "edgewise", *remedies):
        prepare_corpus(scale_of("multi30k"), "en-de", None, out, silent)
    with raises(SettingError, data, *remedies):
        prepare_corpus(scale_of("multi30k"), "en-de", data, out, silent)
    write(data, train=slice(0, 300), val=slice(300, 350))
    with raises(SettingError, data, "test_2016_flickr.en.gz", "test", *remedies):
        prepare_corpus(scale_of("multi30k"), "en-de", data, out, silent)
    (data / "val.de.gz").unlink()
    with raises(SettingError, data, "val.en.gz", "valid", *remedies):
        prepare_corpus(scale_of("multi30k"), "en-de", data, out, silent)
    with raises(SettingError, "multi30k-wu2021", "Multi30k", "--data"):
        prepare_corpus(scale_of("multi30k-wu2021"), "en-de", None, out, silent)
    assert not out.exists()


def test_a_corpus_that_has_changed_is_told_by_its_file(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_all(data)
    prepare_corpus(scale_of("multi30k"), "en-de", data, out, silent)
    write(data, val=slice(299, 350))
    with raises(DataError, out, "valid/val.de.gz", "--out"):
        prepare_corpus(scale_of("multi30k"), "en-de", data, out, silent)
    write_all(data)
    prepare_corpus(scale_of("multi30k"), "en-de", data, out, silent)


def test_a_folder_in_the_place_of_a_prepared_corpus_is_not_replaced(tmp_path: Path) -> None:
    scale = scale_of("demo", grammar=Grammar(train=9, valid=3, test=3))
    folder = tmp_path / "work" / "corpora" / "demo-en-de"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with raises(SettingError, folder):
        prepare_corpus(scale, "en-de", None, tmp_path, silent)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_corpus_that_is_to_be_prepared_otherwise_is_not_taken_for_it(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_all(data)
    prepare_corpus(scale_of("multi30k"), "en-de", data, out, silent)
    with raises(SettingError, out, "vocab_size", 400, 401, "--out"):
        prepare_corpus(scale_of("multi30k", vocab_size=401), "en-de", data, out, silent)
    with raises(SettingError, out, "max_source_words", None, 7, "--out"):
        prepare_corpus(scale_of("multi30k", max_source_words=7), "en-de", data, out, silent)


def test_files_of_one_name_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    files = {part: (part + "/{language}.gz",) for part in ("train", "valid", "test")}
    scale = scale_of("multi30k", files=Files(**files))
    for name, lines in (("train", LINES[:300]), ("valid", LINES[300:350]), ("test", LINES[350:])):
        (data / name).mkdir(parents=True)
        for i, language in enumerate(("en", "de")):
            text = "".join(f"{pair[i]}\n" for pair in lines)
            (data / name / f"{language}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    assert len(prepare_corpus(scale, "en-de", data, out, silent).files) == 6
    (data / "test" / "de.gz").write_bytes(gzip.compress(b"anders\n" * 50))
    with raises(DataError, out, "test/test/de.gz", "--out"):
        prepare_corpus(scale, "en-de", data, out, silent)


def test_a_carriage_return_ends_no_line(tmp_path: Path) -> None:
    write_all(tmp_path)
    path = tmp_path / "val.de.gz"
    lines = gzip.decompress(path.read_bytes()).replace(b" ", b"\r", 1)
    path.write_bytes(gzip.compress(lines))
    prepared = prepare_corpus(scale_of("multi30k"), "en-de", tmp_path, tmp_path / "out", silent)
    assert part(prepared, "valid")[0][1] == LINES[300][1].replace(" ", "\r", 1)
    assert len(part(prepared, "valid")) == 50


def test_a_part_without_a_sentence_is_told(tmp_path: Path) -> None:
    write_all(tmp_path)
    write(tmp_path, test_2016_flickr=slice(0, 0))
    with raises(DataError, "test", "multi30k"):
        prepare_corpus(scale_of("multi30k"), "en-de", tmp_path, tmp_path / "out", silent)


@pytest.mark.parametrize(("line", "reason"), [(b"", "empty"), (b"\xff", "UTF-8")])
def test_a_line_to_be_measured_on_that_cannot_be_used_is_told(
    line: bytes, reason: str, tmp_path: Path
) -> None:
    write_all(tmp_path)
    for language, added in (("en", line), ("de", b"ja")):
        path = tmp_path / f"val.{language}.gz"
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + added + b"\n"))
    with raises(DataError, "line 51", tmp_path / "val.en.gz", reason):
        prepare_corpus(scale_of("multi30k"), "en-de", tmp_path, tmp_path / "out", silent)


def test_files_of_other_lengths_are_told(tmp_path: Path) -> None:
    write_all(tmp_path)
    path = tmp_path / "val.en.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"one more\n"))
    with raises(DataError, path, 51, tmp_path / "val.de.gz", 50):
        prepare_corpus(scale_of("multi30k"), "en-de", tmp_path, tmp_path / "out", silent)


def test_splits_of_words_are_undone(tmp_path: Path) -> None:
    for name, lines in (("train", LINES[:300]), ("valid", LINES[300:350]), ("test.2016", LINES)):
        for i, language in enumerate(("en", "de")):
            split = "".join(pair[i][:3] + "@@ " + pair[i][3:] + "\n" for pair in lines)
            (tmp_path / f"{name}.{language}").write_text(split, encoding="utf-8")
    scale = scale_of("multi30k-wu2021")
    prepared = prepare_corpus(scale, "en-de", tmp_path, tmp_path / "out", silent)
    assert part(prepared, "valid") == LINES[300:350]
    assert trained(prepared) == LINES[:300]


def test_what_is_too_long_to_train_on_is_tested_on(tmp_path: Path) -> None:
    write_all(tmp_path)
    scale = scale_of("multi30k-short", max_source_words=6, buckets=(6, 8, 20), held_out=5)
    prepared = prepare_corpus(scale, "en-de", tmp_path, tmp_path / "out", silent)
    words = [len(source.split()) for source, _ in LINES]
    assert len(corpus_of(prepared).train) == sum(count <= 6 for count in words[:300])
    numbers = [(count > 6) + (count > 8) + (count > 20) for count in words]
    assert part(prepared, "test") == LINES[350:400] + [
        LINES[i] for i in range(300) if numbers[i] in (1, 2) and numbers[:i].count(numbers[i]) < 5
    ]


def test_several_test_sets_are_prepared_and_hashed_by_their_names(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_all(data)
    write(data, test_2017_flickr=slice(10, 20))
    with raises(SettingError, data, "test_2017_mscoco.en.gz", "test_2017_mscoco"):
        prepare_corpus(scale_of("multi30k-converged"), "en-de", data, out, silent)
    write(data, test_2017_mscoco=slice(20, 40))
    prepared = prepare_corpus(scale_of("multi30k-converged"), "en-de", data, out, silent)
    assert part(prepared, "test_2016_flickr") == LINES[350:400]
    assert part(prepared, "test_2017_flickr") == LINES[10:20]
    assert part(prepared, "test_2017_mscoco") == LINES[20:40]
    assert list(prepared.files)[4:] == [
        f"{name}/{name}.{language}.gz"
        for name in ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
        for language in ("en", "de")
    ]
    write(data, test_2017_flickr=slice(11, 20))
    with raises(DataError, out, "test_2017_flickr/test_2017_flickr.de.gz", "--out"):
        prepare_corpus(scale_of("multi30k-converged"), "en-de", data, out, silent)


def test_of_the_built_in_corpus_no_test_sentence_is_trained_on(tmp_path: Path) -> None:
    grammar = Grammar(train=2000, valid=30, test=40)
    scale = scale_of("demo", grammar=grammar, vocab_size=500)
    prepared = prepare_corpus(scale, "en-de", None, tmp_path / "out", silent)
    assert len(part(prepared, "valid")) == 30
    assert len(part(prepared, "test")) == 40
    assert not {source for source, _ in trained(prepared)} & {
        source for source, _ in part(prepared, "test")
    }


# SCAN: commands and actions.

VERBS = ("walk", "look", "run", "jump")
SIDES = ("", "left", "right")
TIMES = ("", "twice", "thrice")
COMMANDS = Commands(files=("one.txt.gz", "two.txt.gz"), max_target_words=6, valid=50)


def phrases() -> list[tuple[str, str]]:
    found = []
    for verb, side, times in product(VERBS, SIDES, TIMES):
        actions = ([f"I_TURN_{side.upper()}"] if side else []) + [f"I_{verb.upper()}"]
        command = " ".join(word for word in (verb, side, times) if word)
        found.append((command, " ".join(actions * (1 + TIMES.index(times)))))
    return found


def commands() -> list[tuple[str, str]]:
    single = phrases()
    both = ((f"{a} and {b}", f"{x} {y}") for (a, x), (b, y) in product(single, single))
    return [*single, *both]


def write_commands(folder: Path, one: Sequence[str], two: Sequence[str] = ()) -> Path:
    folder.mkdir(exist_ok=True)
    for name, lines in zip(COMMANDS.files, (one, two), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


def scan_lines() -> list[str]:
    return [f"IN: {command} OUT: {actions}" for command, actions in commands()]


def prepare_scan(data: Path, out: Path, **changes: object) -> PreparedData:
    scale = scale_of("scan", vocab_size=300, commands=COMMANDS.model_copy(update=changes))
    return prepare_corpus(scale, "commands-actions", data, out, silent)


def test_commands_are_split_by_the_number_of_actions(tmp_path: Path) -> None:
    lines = scan_lines()
    data = prepare_scan(write_commands(tmp_path / "data", lines[::2], lines[1::2]), tmp_path)
    parts = {"train": trained(data), "valid": part(data, "valid"), "test": part(data, "test")}
    expected = {(command, actions.replace("_", "")) for command, actions in commands()}
    assert sum(len(pairs) for pairs in parts.values()) == len(expected)  # no overlap
    assert {pair for pairs in parts.values() for pair in pairs} == expected
    lengths = {name: [len(pair[1].split()) for pair in pairs] for name, pairs in parts.items()}
    assert max(lengths["train"]) == 6 and max(lengths["valid"]) <= 6
    assert min(lengths["test"]) == 7 and max(lengths["test"]) == 12
    assert len(parts["valid"]) == 50
    # The held-out pairs are drawn, not the first or the shortest.
    assert sorted(parts["valid"]) != sorted(parts["train"] + parts["valid"])[:50]
    assert len(set(lengths["valid"])) > 3
    assert list(data.files) == list(COMMANDS.files)


def test_underscores_are_removed_from_actions(tmp_path: Path) -> None:
    data = prepare_scan(write_commands(tmp_path / "data", scan_lines()), tmp_path)
    pairs = dict([*trained(data), *part(data, "valid"), *part(data, "test")])
    assert pairs["jump left and run"] == "ITURNLEFT IJUMP IRUN"
    assert not any("_" in actions for actions in pairs.values())


def test_the_split_of_commands_depends_on_their_set_only(tmp_path: Path) -> None:
    lines = scan_lines()
    first = prepare_scan(write_commands(tmp_path / "a", lines), tmp_path / "out-a")
    other = write_commands(tmp_path / "b", lines[::-1], lines[:99])  # another order, twice
    second = prepare_scan(other, tmp_path / "out-b")
    assert trained(first) == trained(second)
    for name in ("valid", "test"):
        assert part(first, name) == part(second, name)


@pytest.mark.parametrize(
    "line",
    [
        *("", "IN: walk", "walk OUT: I_WALK", "IN: OUT: I_WALK", "IN: walk OUT:", "IN:  OUT: "),
        *("in: walk out: I_WALK", "IN: walk I_WALK"),
    ],
)
def test_a_line_that_is_no_command_is_named_with_its_file(line: str, tmp_path: Path) -> None:
    lines = scan_lines()
    folder = write_commands(tmp_path / "data", lines, [*lines[:3], line, *lines[4:9]])
    with raises(DataError, folder / "two.txt.gz", "line 4", "IN", "OUT"):
        prepare_scan(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [b"IN: walk OUT: I_WALK\n", gzip.compress(b"\xff"), gzip.compress(b"IN:")[:-9]],
    ids=["no gzip", "no UTF-8", "cut off"],  # gzip contains the time, and ids must not
)
def test_a_file_of_commands_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    folder = write_commands(tmp_path / "data", scan_lines())
    (folder / "two.txt.gz").write_bytes(content)
    with raises(DataError, folder / "two.txt.gz"):
        prepare_scan(folder, tmp_path / "out")


def test_commands_that_are_missing_or_have_changed_are_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with raises(SettingError, "scan", "SCAN", "--data"):
        prepare_corpus(scale_of("scan"), "commands-actions", None, out, silent)
    folder = write_commands(tmp_path / "scan", scan_lines())
    prepare_scan(tmp_path, out)  # the folder of the name of the scale
    with raises(SettingError, out, "commands", 6, 5, "--out"):
        prepare_scan(folder, out, max_target_words=5)
    write_commands(folder, scan_lines()[:-1])
    with raises(DataError, out, "one.txt.gz", "--out"):
        prepare_scan(folder, out)
    (folder / "two.txt.gz").unlink()
    with raises(SettingError, folder, "two.txt.gz", "scan", "--data"):
        prepare_scan(folder, out)


@pytest.mark.parametrize(
    ("changes", "empty"), [({"valid": 10_000}, "train"), ({"max_target_words": 12}, "test")]
)
def test_a_split_of_commands_with_an_empty_part_is_refused(
    changes: dict[str, object], empty: str, tmp_path: Path
) -> None:
    folder = write_commands(tmp_path / "data", scan_lines())
    with raises(DataError, empty, "scan"):
        prepare_scan(folder, tmp_path / "out", **changes)
