"""`edgewise reproduce`: cells, reports, interruption and continuation."""

import json
import os
import random
import re
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
from messages import assert_mentions
from small_runs import command as forked_command
from tiny_model import Command

from edgewise.cli.main import run
from edgewise.data.grammar import pairs

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
    return {path.name: path.read_bytes() for path in (out / "reports" / "tiny").iterdir()}


def measured(out: Path) -> dict[str, Any]:
    """What all cells came to; not how long it took."""
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


def corpus(folder: Path, *, lines: int = 300) -> None:
    folder.mkdir(exist_ok=True)
    for seed, (part, count) in enumerate({"train": lines, "valid": 12, "test": 12}.items()):
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
    corpus(data, lines=301)
    for rows in (first, ("--data", str(data), "--rows", "values", "--budget", "6")):
        done = command(*arguments(scale, out, *rows))
        assert done.returncode == 65
        assert_mentions(done.stderr, out, "train/train.de", "--out")
        assert "Traceback" not in done.stderr
        assert measured(out) == before
    done = command(*arguments(scale, tmp_path / "none", "--data", str(tmp_path / "no")))
    assert done.returncode == 2
    assert_mentions(done.stderr, tmp_path / "no", "--data")


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
        (["recipe", "--scale", "demo"], ("recipe", "demo", "multi30k-wu2021")),
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


def test_the_cost_of_relative_positions(scale: Path, tmp_path: Path) -> None:
    done = forked_command("reproduce", "cost", "--scale", str(scale), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "reports" / "tiny" / "cost.md").read_text()
    assert "| absolute | " in text and "| -7 % | " in text
    content = json.loads((tmp_path / "reports" / "tiny" / "cost.json").read_text())
    absolute, relative = content["rows"]
    assert absolute["against_first"] == 0.0
    ratio = absolute["seconds"] / relative["seconds"]
    assert relative["against_first"] == pytest.approx(100 * (ratio - 1))


@pytest.mark.long
def test_the_papers_base_model_makes_a_few_updates_on_two_ranks(tmp_path: Path) -> None:
    scale = tmp_path / "few.toml"
    scale.write_text(
        'base = "wmt14"\nvocab_size = 2000\nranks = 2\nthreads = 1\npairs = ["en-de"]\n'
        "[training]\nsteps = 2\nbatch_tokens = 512\n[decoding]\nextra_tokens = 1\n"
    )
    data = tmp_path / "data"
    corpus(data, lines=20_000)
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
