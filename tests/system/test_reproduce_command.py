"""`edgewise reproduce`: cells, reports, interruption and continuation.

What is specific to graphs is in test_clutrr_command.py.
"""

import gzip
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from forked_cells import fork_cells, plan
from messages import assert_mentions, error_lines
from small_runs import command as forked_command
from tiny_model import Command

from edgewise.cli.main import run
from edgewise.data.grammar import pairs
from edgewise.decoding import Translator
from edgewise.evaluation import bleu
from edgewise.reproduction.scales import read_scale
from edgewise.reproduction.translation import _translate_with_length
from edgewise.training.settings import RunSettings

SCALE = """
title = "very little"
differs = ["everything"]
pairs = ["en-de"]
vocab_size = 400
average = 3
threads = 1

{corpus}

[model]
encoder_layers = 1
decoder_layers = 1
d_model = 16
heads = 2
d_ff = 32
max_distance = 3
dropout = 0.1

[training]
steps = 120
batch_tokens = 400
batches = 1
warmup = 30
factor = 0.4
validate_every = 60
validate_bleu = 0
save_every = 20
keep = 3

[decoding]
beam = 2
extra_tokens = 2
"""
GRAMMAR = "[grammar]\ntrain = 300\nvalid = 12\ntest = 12"
FILES = """[files]
train = ["train.{language}"]
valid = ["valid.{language}"]
test = ["test.{language}"]"""
TWO_TESTS = FILES.replace(
    'test = ["test.{language}"]',
    '[files.test]\npictures = ["pictures.{language}"]\nnews = ["news.{language}"]',
)
COMMANDS = """[commands]
files = ["one.txt.gz", "two.txt.gz"]
max_target_words = 4
valid = 20"""
ROW = 'name = "wider"\ntitle = "mine, wider"\n[model]\nd_ff = 48\n'


@pytest.fixture(scope="module", autouse=True)
def forked_cells() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        fork_cells(patch)
        yield


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in this process."""
    with TemporaryDirectory() as folder:
        result = Command(Path(folder))(*arguments)
    return subprocess.CompletedProcess(arguments, result.code, result.out.decode(), result.said)


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scale") / "tiny.toml"
    path.write_text(SCALE.format(corpus=GRAMMAR))
    path.with_name("row.toml").write_text(ROW)
    return path


def arguments(scale: Path, out: Path, *more: str) -> list[str]:
    return ["reproduce", "table3", "--scale", str(scale), "--out", str(out), *more]


def whole(scale: Path, out: Path) -> list[str]:
    rows = ("--rows", "keys-and-values", "keys", "--row", str(scale.with_name("row.toml")))
    return arguments(scale, out, *rows)


@pytest.fixture(scope="module")
def undisturbed(scale: Path) -> Path:
    out = scale.with_name("undisturbed")
    done = command(*whole(scale, out))
    assert done.returncode == 0, done.stderr
    assert plan(done.stderr)[:2] == ["0", "3"]
    return out


def reports(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("reports/*/*")}


def measured(out: Path) -> dict[str, Any]:
    """Return the results of all cells, without times."""
    found = {}
    for path in sorted((out / "cells").rglob("*.json")):
        content = json.loads(path.read_text())
        content.pop("about")
        found[str(path.relative_to(out))] = content
    return found


def test_rows_are_measured_and_reported(undisturbed: Path) -> None:
    assert reports(undisturbed).keys() == {"table3.md", "table3.json", "table3.png"}
    text = (undisturbed / "reports" / "tiny" / "table3.md").read_text()
    for row in ("keys and values | 25.8", "keys only | 25.8", "mine, wider | "):
        assert f"\n| {row} | " in text
    assert re.search(r"finished\b.*\bvalues, neither\b", text)
    cells = measured(undisturbed)
    assert list(cells) == [
        "cells/tiny/en-de/d_ff=48/seed1.json",
        "cells/tiny/en-de/on_values=false/seed1.json",
        "cells/tiny/en-de/unchanged/seed1.json",
    ]
    for cell in cells.values():
        assert cell["updates"] == 120
        assert [step for step, _ in cell["losses"]] == [60, 120]
        assert cell["parts"]["test"]["sentences"] == 12
    for folder in (undisturbed / "work" / "tiny" / "en-de").glob("*/seed1"):
        assert (folder / "model" / "model.safetensors").is_file()
        assert not (folder / "run" / "checkpoints").exists()  # gigabytes, in a real table


def test_the_same_command_again_has_nothing_to_do(scale: Path, undisturbed: Path) -> None:
    def times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in (undisturbed / "cells").rglob("*.json")}

    before, report = times(), reports(undisturbed)
    done = command(*whole(scale, undisturbed))
    assert done.returncode == 0, done.stderr
    assert plan(done.stderr)[:2] == ["3", "3"]
    assert times() == before
    assert reports(undisturbed) == report


def test_a_result_that_is_gone_is_measured_again_with_the_model(
    scale: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.cli.grid_progress.LINE_EVERY", 0.0)
    before, report = measured(undisturbed), reports(undisturbed)
    (undisturbed / "cells/tiny/en-de/unchanged/seed1.json").unlink()
    model = undisturbed / "work/tiny/en-de/unchanged/seed1/model"
    written = model.stat().st_mtime_ns
    done = command(*whole(scale, undisturbed))
    assert done.returncode == 0, done.stderr
    assert model.stat().st_mtime_ns == written
    # Without a terminal, progress is printed as lines.
    assert_mentions(done.stderr, "tiny/en-de/unchanged/seed1", "of 120")
    assert measured(undisturbed) == before
    assert reports(undisturbed) == report


def stopped(
    scale: Path, out: Path, sent: signal.Signals, chance: random.Random, most: float = 1.5
) -> None:
    """Run the command with real processes; send a signal after the first update of a cell."""
    began = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "edgewise", *whole(scale, out)], stderr=subprocess.PIPE, text=True
    )

    def is_training() -> bool:
        found = out.glob("work/tiny/*/*/*/run/metrics.jsonl")
        return any(path.stat().st_mtime > began for path in found)

    while process.poll() is None and not is_training():
        time.sleep(0.01)
    time.sleep(chance.uniform(0, most))  # any moment will do
    process.send_signal(sent)
    _, said = process.communicate()
    assert process.returncode in (0, -sent, 128 + sent), said
    assert "Traceback" not in said


def assert_the_same_in_the_end(scale: Path, out: Path, undisturbed: Path) -> None:
    done = command(*whole(scale, out))
    assert done.returncode == 0, done.stderr
    assert measured(out) == measured(undisturbed)
    assert reports(out) == reports(undisturbed)


def test_stopped_and_continued_it_comes_to_the_same_report(
    scale: Path, undisturbed: Path, tmp_path: Path
) -> None:
    chance = random.Random(7)
    stopped(scale, tmp_path, signal.SIGTERM, chance, 0.0)
    assert len(measured(tmp_path)) < 3  # not at its end
    stopped(scale, tmp_path, signal.SIGKILL, chance)
    assert_the_same_in_the_end(scale, tmp_path, undisturbed)


@pytest.mark.long
def test_stopped_twenty_times_and_continued_it_comes_to_the_same_report(
    scale: Path, undisturbed: Path, tmp_path: Path
) -> None:
    chance = random.Random(8)
    for i in range(20):
        out = tmp_path / str(i // 4)
        sent = chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
        stopped(scale, out, sent, chance)
        if i % 4 == 3:
            assert_the_same_in_the_end(scale, out, undisturbed)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def corpus(folder: Path, *, train: int = 300, tests: tuple[str, ...] = ("test",)) -> None:
    folder.mkdir(exist_ok=True)
    parts = {"train": train, "valid": 12} | dict.fromkeys(tests, 12)
    for seed, (part, count) in enumerate(parts.items()):
        sides = zip(*pairs(count, seed), strict=True)
        for language, side in zip(("en", "de"), sides, strict=True):
            text = "".join(f"{line}\n" for line in side)
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8")


def test_a_corpus_that_changed_between_cells_is_told_and_no_cell_is_lost(tmp_path: Path) -> None:
    scale, data, out = tmp_path / "tiny.toml", tmp_path / "data", tmp_path / "out"
    scale.write_text(SCALE.replace("{corpus}", FILES))
    corpus(data)
    first = ("--data", str(data), "--rows", "keys", "--budget", "6")
    done = command(*arguments(scale, out, *first))
    assert done.returncode == 0, done.stderr
    before = measured(out)
    corpus(data, train=301)
    for rows in (first, ("--data", str(data), "--rows", "values", "--budget", "6")):
        done = command(*arguments(scale, out, *rows))
        assert done.returncode == 65
        assert_mentions(done.stderr, out, "train/train.de", "--out")
        assert "Traceback" not in done.stderr
        assert measured(out) == before
    done = command(*arguments(scale, tmp_path / "none", "--data", str(tmp_path / "no")))
    assert done.returncode == 2
    assert_mentions(done.stderr, tmp_path / "no", "--data")


ABSOLUTE = "tiny/en-de/sinusoids=true,max_distance=none,steps=60/seed1"


@pytest.fixture(scope="module")
def two_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run two rows at a scale with two test sets and two metrics; return the folder of it all.

    Better translations than those of so small a model are there already for one row.
    """
    folder = tmp_path_factory.mktemp("two-tests")
    metrics = 'metrics = ["BLEU", "log-probability"]'
    text = SCALE.replace("{corpus}", TWO_TESTS).replace("average = 3", f"average = 1\n{metrics}")
    (folder / "tiny.toml").write_text(text)
    corpus(folder / "data", tests=("pictures", "news"))
    work = folder / "out" / "work" / ABSOLUTE
    work.mkdir(parents=True)
    for test, left_out in (("pictures", 1), ("news", 0)):
        references = lines(folder / "data" / f"{test}.de")
        text = "".join(f"{' '.join(line.split()[left_out:])}\n" for line in references)
        (work / f"{test}.txt").write_text(text)
    run_two_tests(folder, folder / "out")
    return folder


def run_two_tests(folder: Path, out: Path, *more: str) -> None:
    asked = ("--scale", str(folder / "tiny.toml"), "--data", str(folder / "data"), "--budget", "60")
    done = command("reproduce", "table1", *asked, "--out", str(out), *more)
    assert done.returncode == 0, done.stderr


def test_each_test_set_is_stored_and_all_are_pooled_in_the_report(two_tests: Path) -> None:
    out = two_tests / "out"
    cell = measured(out)[f"cells/{ABSOLUTE}.json"]
    assert cell["parts"].keys() == {"valid", "pictures", "news"}
    for part in cell["parts"].values():
        assert part["sentences"] == 12
        assert part["metrics"].keys() == {"BLEU", "log-probability"}

    text = (out / "reports/tiny/table1,budget=60.md").read_text()
    for column in (
        *("BLEU on test (24)", "log-probability per piece (nats) on test (24)"),
        "BLEU on validation (12)",
        *("BLEU on pictures (12)", "BLEU on news (12)"),
    ):
        assert f" | {column} |" in text
    assert "| base, relative minus base, absolute | +0.3 | " in text

    report = json.loads((out / "reports/tiny/table1,budget=60.json").read_text())
    table = report["pairs"][0]["tables"][0]
    scores = {
        column["heading"]: score["values"]
        for column, score in zip(table["columns"], table["scores"]["absolute"], strict=True)
    }
    translations, references = (
        [line for test in ("pictures", "news") for line in lines(folder / f"{test}.{suffix}")]
        for folder, suffix in ((out / "work" / ABSOLUTE, "txt"), (two_tests / "data", "de"))
    )
    assert scores["BLEU on test"] == pytest.approx([bleu(translations, references).value])
    assert scores["BLEU on pictures"] < scores["BLEU on test"] < scores["BLEU on news"]
    columns = [cell["parts"][part]["by_sentence"] for part in ("pictures", "news")]
    total, pieces = (
        sum(float(value) for each in columns for value in each[column].split())
        for column in ("reference_log_probability", "reference_pieces")
    )
    assert scores["log-probability per piece (nats) on test"] == pytest.approx([total / pieces])


def test_the_same_seed_in_another_folder_gives_the_same_measurements(
    two_tests: Path, tmp_path: Path
) -> None:
    run_two_tests(two_tests, tmp_path, "--rows", "relative")
    again, before = measured(tmp_path), measured(two_tests / "out")
    assert list(again) == ["cells/tiny/en-de/steps=60/seed1.json"]
    assert again.items() <= before.items()


def test_report_only_writes_reports_of_finished_cells_and_runs_nothing(
    two_tests: Path, tmp_path: Path
) -> None:
    asked = ("reproduce", "table1", "--scale", str(two_tests / "tiny.toml"), "--budget", "60")
    done = command(*asked, "--report-only", "--seeds", "1", "2", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert_mentions(done.stderr, "table1", "no cell is finished")
    assert not list(tmp_path.iterdir())
    shutil.copytree(two_tests / "out/cells", tmp_path / "cells")
    done = command(*asked, "--report-only", "--seeds", "1", "2", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert plan(done.stderr)[:2] == ["2", "4"]
    assert {path.name for path in tmp_path.iterdir()} == {"cells", "reports"}
    assert reports(tmp_path) == reports(two_tests / "out")


def commands() -> list[tuple[str, list[str]]]:
    """Return commands as those of SCAN, with up to 6 actions."""
    counts = {"": 1, " twice": 2, " thrice": 3}
    single = [
        (verb + count, [f"I_{verb.upper()}"] * n)
        for verb in ("walk", "run", "jump", "look")
        for count, n in counts.items()
    ]
    double = [
        pair
        for (one, first), (two, second) in itertools.product(single, single)
        for pair in (
            (f"{one} and {two}", first + second),
            (f"{one} after {two}", second + first),
        )
    ]
    return single + double


def test_commands_are_measured_with_and_without_their_length(tmp_path: Path) -> None:
    found = commands()
    (tmp_path / "data").mkdir()
    for name, some in (("one", found[::2]), ("two", found[1::2])):
        with gzip.open(tmp_path / "data" / f"{name}.txt.gz", "wt") as file:
            file.writelines(f"IN: {text} OUT: {' '.join(actions)}\n" for text, actions in some)
    head = """metrics = ["exact match", "exact match, length given"]
by = "target_words"
buckets = [4, 5, 6]
average = 1"""
    scale = tmp_path / "tiny.toml"
    text = SCALE.replace("{corpus}", COMMANDS).replace("average = 3", head)
    scale.write_text(
        text.replace('"en-de"', '"commands-actions"')
        .replace("= 400\n", "= 330\n", 1)
        .replace("beam = 2\nextra_tokens = 2", "beam = 1\nmax_length = 8")
    )
    asked = ("--rows", "relative-k4", "--budget", "60", "--data", str(tmp_path / "data"))
    done = command("reproduce", "scan", "--scale", str(scale), "--out", str(tmp_path), *asked)
    assert done.returncode == 0, done.stderr

    ((path, cell),) = measured(tmp_path).items()
    assert path == "cells/tiny/commands-actions/max_distance=4,steps=60/seed1.json"
    assert cell["parts"]["valid"]["sentences"] == 20
    columns = {
        name: [int(value) for value in values.split()]
        for name, values in cell["parts"]["test"]["by_sentence"].items()
    }
    assert columns.keys() == {"source_words", "target_words", "exact", "exact_with_length"}
    longer = [len(actions) for _, actions in found if len(actions) > 4]
    assert sorted(columns["target_words"]) == sorted(longer)
    # Greedy search that ends at the right place by itself is not changed by the length.
    assert all(a <= b for a, b in zip(columns["exact"], columns["exact_with_length"], strict=True))

    text = next(tmp_path.glob("reports/tiny/scan,*.md")).read_text()
    for metric in ("exact match", "exact match, length given"):
        assert f" | {metric} on test ({len(longer)}) | " in text
        assert f"\n### {metric} on test, by target words\n" in text
    assert text.count("|  | 5, longer than in training | 6, longer than in training |") == 2
    assert f"\n| examples | {longer.count(5)} | {longer.count(6)} |\n" in text

    folder = tmp_path / "work/tiny/commands-actions/max_distance=4,steps=60/seed1"
    prepared = tmp_path / "work/corpora/tiny-commands-actions"
    sources, references = (lines(prepared / f"test.{side}") for side in ("source", "target"))
    translator = Translator.load(folder / "model")
    translator.settings = read_scale(str(scale)).decoding
    given = _translate_with_length(translator, sources, references)
    assert [len(text.split()) for text in given] == columns["target_words"]
    exact = [int(one == other) for one, other in zip(given, references, strict=True)]
    assert exact == columns["exact_with_length"]


def test_a_cell_that_fails_does_not_hold_up_the_others(scale: Path, tmp_path: Path) -> None:
    row = tmp_path / "row.toml"
    row.write_text('name = "wild"\n[training]\nfactor = 1e5\n')
    asked = ("--row", str(row), "--rows", "keys", "--jobs", "1", "--budget", "60")
    done = command(*arguments(scale, tmp_path, *asked))
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("edgewise:")]
    assert_mentions(error, "tiny/en-de/steps=60,factor=100000.0/seed1", "training.factor")
    assert re.search(r"update \d+\b.*\b(nan|inf)\b", error)
    assert "Traceback" not in done.stderr
    assert list(measured(tmp_path)) == ["cells/tiny/en-de/on_values=false,steps=60/seed1.json"]
    (report,) = tmp_path.glob("reports/tiny/*,budget=60.md")
    assert re.search(r"^- .*\bbudget 60\b", report.read_text(), re.MULTILINE)


def test_a_damaged_result_is_told_before_any_work(scale: Path, tmp_path: Path) -> None:
    path = tmp_path / "cells/tiny/en-de/on_keys=false/seed7.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    done = command(*arguments(scale, tmp_path, "--rows", "neither"))
    assert done.returncode == 65
    assert_mentions(done.stderr, path, "JSON")
    assert not (tmp_path / "work").exists()


def test_a_full_disk_loses_no_finished_cell(
    scale: Path, small_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    out = small_disk(4) / "out"
    done = command(*arguments(scale, out, "--rows", "keys"))
    assert done.returncode == 0, done.stderr
    before = measured(out)
    stuffing = out.with_name("stuffing")
    free = os.statvfs(out).f_bavail * os.statvfs(out).f_frsize
    stuffing.write_bytes(bytes(free - 150_000))
    done = command(*arguments(scale, out, "--rows", "values"))
    assert done.returncode == 74, done.stderr
    assert_mentions(done.stderr, "No space left on device")
    assert "Traceback" not in done.stderr
    assert measured(out) == before
    stuffing.unlink()
    done = command(*arguments(scale, out, "--rows", "values"))
    assert done.returncode == 0, done.stderr
    assert len(measured(out)) == 2


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        (["table4"], ("table4", "table3")),
        (["table2", "--scale", "multi30"], ("multi30", "multi30k")),
        (["table2", "--rows", "k=3"], ("table2", "demo", "k=3", "k2")),
        (["table1", "--rows", "big-absolute"], ("table1", "demo", "big-absolute")),
        (["table1", "--pairs", "en-fr"], ("table1", "demo", "en-fr", "en-de")),
        (["table2", "--row", "no.toml"], ("no.toml", "--row")),
        (["table2", "--budget", "0"], ("--budget", 1, 0)),
        (["table2", "--jobs", "0"], ("--jobs", 1, 0)),
        (["table2", "--seeds", "-1"], ("seed", 0, -1)),
        (["table1", "clutr"], ("clutr", "clutrr")),
        (["table1", "clutrr", "--scale", "demo"], ("clutrr", "demo")),
        (["recipe", "--scale", "demo"], ("recipe", "demo", "multi30k-wu2021")),
        (["scan"], ("scan", "--data")),
        ([], ("edgewise reproduce list",)),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_written(
    more: list[str],
    facts: tuple[object, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["reproduce", *more, "--out", str(tmp_path / "out")]) == 2
    assert_mentions(capsys.readouterr().err, *facts)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        ("average = 3", 'average = 3\nmetrics = ["accuracy"]', ("metrics.0", "BLEU", "accuracy")),
        ("average = 3", 'average = 3\nby = "hops"', ("by", "source_words", "hops")),
        ("test = [", "[files.test]\nvalid = [", ("test", "valid")),
        ("test = [", '[files.test]\n"a/b" = [', ("files.test", "a/b")),
    ],
)
def test_a_scale_whose_cells_could_not_be_measured_is_refused(
    old: str, new: str, facts: tuple[object, ...], tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SCALE.replace("{corpus}", FILES).replace(old, new))
    done = command(*arguments(path, tmp_path, "--dry-run"))
    assert done.returncode == 2
    (error,) = error_lines(done.stderr)
    assert_mentions(error, path, *facts)


def test_a_dry_run_says_what_would_be_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command(
        "reproduce", "table1", "table2", "--scale", "wmt14", "--dry-run", "--out", str(out)
    )
    assert done.returncode == 0
    assert plan(done.stderr) == ["0", "14", "1"]
    (line,) = [line for line in done.stderr.splitlines() if "wmt14/en-de/unchanged/seed1" in line]
    assert_mentions(line, "100,000 updates")
    assert not out.exists()


def test_the_list_has_each_row_with_its_figure() -> None:
    done = command("reproduce", "list")
    assert done.returncode == 0
    assert "k256             k = 256                    en-de 25.8" in done.stdout
    assert "big-relative     big, relative              en-de 29.2" in done.stdout
    assert "clutrr       Kinship graphs" in done.stdout
    assert "  gated-keys " in done.stdout


def test_settings_of_a_row_can_be_trained_by_edgewise_train(scale: Path, tmp_path: Path) -> None:
    paths = ("--corpus", "text/corpus", "--out", "a/run")
    done = command("reproduce", "settings", "table3", "keys", "--scale", str(scale), *paths)
    assert done.returncode == 0, done.stderr
    config = tmp_path / "keys.toml"
    config.write_text(done.stdout)
    tiny = read_scale(str(scale))
    assert RunSettings.read(config) == RunSettings(
        corpus=Path("text/corpus"),
        out=Path("a/run"),
        model=tiny.model.model_copy(update={"on_values": False}),
        training=tiny.training.model_copy(update={"threads": 1}),
    )
    done = command("train", str(config))  # there is no such corpus, but the settings are read
    assert done.returncode == 2
    assert_mentions(done.stderr, "text/corpus")


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        (["table3", "kyes"], ("table3", "wmt14", "kyes", "keys")),
        (["table3", "keys", "--pair", "en-ed"], ("table3", "wmt14", "en-ed", "en-de")),
        (["clutrr", "keys"], ("clutrr", "wmt14")),
        (["clutrr", "keys", "--scale", "clutrr"], ("clutrr", "edgewise train")),
        (["scan", "absolute", "--scale", "scan"], ("scan", "en-de", "commands-actions")),
    ],
)
def test_settings_that_there_are_none_of_are_refused(
    asked: list[str], facts: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "settings", *asked]) == 2
    said = capsys.readouterr()
    assert_mentions(said.err, *facts)
    assert said.out == ""


def test_the_cost_of_relative_positions_has_an_interval(scale: Path, tmp_path: Path) -> None:
    some = ("--scale", str(scale), "--out", str(tmp_path), "--budget", "8")
    done = forked_command("reproduce", "cost", *some)
    assert done.returncode == 0, done.stderr
    report = tmp_path / "reports" / "tiny" / "cost,budget=8.md"
    content = json.loads(report.with_suffix(".json").read_text())
    assert content["rounds"] == 8
    absolute, relative = content["rows"]
    assert absolute["against_first"] == 0.0
    assert absolute["interval"] == [0.0, 0.0]
    low, high = relative["interval"]
    assert -100 < low <= relative["against_first"] <= high
    assert low < high
    text = report.read_text()
    assert "| absolute | " in text
    assert f"| -7 % | {relative['against_first']:+.1f} % | {low:+.1f} to {high:+.1f} % |" in text
    done = command("reproduce", "cost", *some)
    assert done.returncode == 0
    assert_mentions(done.stderr, report, "exists already")
    assert report.read_text() == text


@pytest.mark.long
def test_the_papers_base_model_makes_a_few_updates_on_two_ranks(tmp_path: Path) -> None:
    scale = tmp_path / "few.toml"
    scale.write_text(
        'base = "wmt14"\nvocab_size = 2000\nranks = 2\nthreads = 1\npairs = ["en-de"]\n'
        "[training]\nsteps = 2\nbatch_tokens = 512\n[decoding]\nextra_tokens = 1\n"
    )
    data = tmp_path / "data"
    corpus(data, train=20_000)
    for language in ("en", "de"):
        for part in ("valid", "test"):
            short = (data / f"{part}.{language}").read_text().splitlines(keepends=True)[:2]
            (data / f"{part}.{language}").write_text("".join(short))
    asked = ("--rows", "relative", "--data", str(data), "--out", str(tmp_path / "out"))
    done = command("reproduce", "table1", "--scale", str(scale), *asked)
    assert done.returncode == 0, done.stderr
    (cell,) = measured(tmp_path / "out").values()
    assert cell["parameters"] == 48_689_152 - (32_768 - 2000) * 512
    assert cell["updates"] == 2


@pytest.mark.long
def test_ranks_train_a_cell_together(scale: Path, tmp_path: Path) -> None:
    two = tmp_path / "two.toml"
    text = scale.read_text().replace("batches = 1", "batches = 2")
    two.write_text(text.replace("threads = 1", "threads = 1\nranks = 2"))
    done = command(*arguments(two, tmp_path, "--rows", "keys"))
    assert done.returncode == 0, done.stderr
    (cell,) = measured(tmp_path).values()
    assert cell["asked"]["ranks"] == 2
    said = next((tmp_path / "work").rglob("log.txt")).read_text()
    assert_mentions(said, "2 ranks")
