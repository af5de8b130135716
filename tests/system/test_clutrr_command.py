"""`edgewise reproduce clutrr` on small sets of questions: what is specific to graphs."""

import gzip
import json
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_cells import fork_cells, plan
from messages import assert_mentions, error_lines
from tiny_model import PROGRAM
from waiting import PATIENCE, wait_until

from edgewise.cli.main import run
from edgewise.reproduction import scales

SETS = {"data_db9b8f04": (2, 3, 4), "data_089907f8": (2, 3)}
RELATIONS = ("up", "down")


def question(hops: int, chance: random.Random) -> dict[str, Any]:
    """A chain of steps up and down; asked is the first of them. Long ones may have a short cut."""
    types = [chance.choice(RELATIONS) for _ in range(hops)]
    edges = [[i, i + 1] for i in range(hops)]
    if hops == 6 and chance.random() < 0.5:
        edges[-1] = [0, hops]
    return {"edges": edges, "types": types, "query": [0, hops], "target": f"first {types[0]}"}


def write(path: Path, questions: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(each) + "\n" for each in questions)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    chance = random.Random(1)
    for folder, trained in SETS.items():
        (tmp_path / "data" / folder).mkdir(parents=True)
        train = [question(chance.choice(trained), chance) for _ in range(120)]
        names = ",".join(f"1.{hops}" for hops in trained)
        write(tmp_path / "data" / folder / f"{names}_train.jsonl.gz", train)
        for hops in (2, 3, 4, 5, 6):
            tests = [question(hops, chance) for _ in range(40)]
            write(tmp_path / "data" / folder / f"1.{hops}_test.jsonl.gz", tests)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    change(monkeypatch, "epochs = 10", "epochs = 1")


@pytest.fixture
def forked_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_cells(monkeypatch)


def change(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Replace the scale that comes with edgewise by a changed one."""
    text = (scales.FOLDER / "clutrr.toml").read_text()
    assert old in text
    folder = Path("scales").absolute()
    if folder != scales.FOLDER:
        shutil.copytree(scales.FOLDER, folder)
        monkeypatch.setattr(scales, "FOLDER", folder)
    (folder / "clutrr.toml").write_text(text.replace(old, new))


def reproduce(*arguments: str) -> int:
    return run(["reproduce", "clutrr", *arguments])


def cells(out: Path) -> dict[str, dict[str, Any]]:
    """Return the results of all cells, without times."""
    found = {}
    for path in sorted(out.glob("cells/**/*.json")):
        found[str(path.relative_to(out))] = content = json.loads(path.read_text())
        del content["about"]
    return found


def error_line(said: str) -> str:
    """Return the only error message in the output of a command."""
    (line,) = error_lines(said)
    return line


def test_cells_are_run_stored_and_reported_and_come_out_the_same_again(
    data: Path, forked_cells: None, capfd: pytest.CaptureFixture[str]
) -> None:
    some = ("--data", str(data), "--rows", "both", "neither", "--seeds", "2")
    assert reproduce(*some, "--out", "one") == 0
    said = capfd.readouterr().err
    assert plan(said)[:2] == ["0", "4"]
    out = Path("one")
    found = cells(out)
    neither = "on_keys=false,on_values=false"
    assert list(found) == [
        f"cells/clutrr/{pair}/{name}/seed2.json"
        for pair in ("2-3", "2-4")
        for name in (neither, "unchanged")
    ]
    assert f"clutrr/2-3/{neither}/seed2" in said
    for cell in found.values():
        assert cell["updates"] == 1
        test, direct = cell["parts"]["test"], cell["parts"]["direct"]
        assert test["sentences"] == 200
        assert direct["sentences"] < 200
        assert test["by_sentence"].keys() == {"graph", "hops", "correct", "possible"}
    report = (out / "reports/clutrr/clutrr.md").read_text()
    longer = "longer than in training"
    for part in ("test", "test without short cuts"):
        assert report.count(f"\n### accuracy on {part}, by hops\n") == 2
    assert report.count(f"|  | 2 | 3 | 4 | 5, {longer} | 6, {longer} |") == 2
    assert report.count(f"|  | 2 | 3 | 4, {longer} | 5, {longer} | 6, {longer} |") == 2
    assert "\n| best possible | 1.000 | " in report
    assert re.search(r"\n\| examples \| 40, 4 graphs \| 40, \d graphs \| ", report)
    # In the table of scores, and by hops where there are enough graphs to test a difference.
    assert report.count("| keys and values minus no edge labels |") >= 2
    assert (out / "reports/clutrr/clutrr.png").read_bytes().startswith(b"\x89PNG")

    # What is missing is trained again; the report follows from cells without the data.
    (out / "cells/clutrr/2-4/unchanged/seed2.json").unlink()
    assert reproduce(*some, "--out", "one") == 0
    assert plan(capfd.readouterr().err)[:2] == ["3", "4"]
    shutil.rmtree(out / "reports")
    assert reproduce("--rows", "both", "neither", "--seeds", "2", "--out", "one") == 0
    assert cells(out) == found
    assert (out / "reports/clutrr/clutrr.md").read_text() == report


def test_a_dry_run_says_what_it_would_cost(capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("--rows", "keys", "absolute", "--seeds", "1", "2", "3", "--dry-run", "--jobs", "4")
    assert run(["reproduce", "clutrr", "table1", *asked]) == 0
    said = capfd.readouterr().err
    assert plan(said) == ["0", "9", "4"]
    (line,) = [line for line in said.splitlines() if line.startswith("clutrr: ")]
    assert_mentions(line, "6 cells", "6 epochs", "0:01:30")
    assert said.count("/on_values=false/seed") == 6
    assert not Path("runs").exists()


SOME = ("--rows", "both", "--pairs", "2-4")


@pytest.mark.parametrize(
    ("arguments", "facts", "code"),
    [
        (("--rows", "boht"), ("clutrr", "boht", "both"), 2),
        (("--pairs", "1-9"), ("clutrr", "1-9", "2-4", "2-3"), 2),
        (("--ranks", "2"), ("--ranks", "clutrr", 1, 2), 2),
        (("--seeds", str(2**70)), ("seed", 2**63, 2**70), 2),
        (("--row", "average.toml"), ("row mean", "average", 2, 1), 2),
        (SOME, ("--data", "data_db9b8f04"), 2),
        (
            (*SOME, "--data", "elsewhere"),
            ("elsewhere/data_db9b8f04", 0, "*_train.jsonl.gz", "1.HOPS_test.jsonl.gz", "--data"),
            65,
        ),
    ],
)
def test_what_is_not_there_is_told(
    arguments: tuple[str, ...],
    facts: tuple[object, ...],
    code: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("average.toml").write_text('name = "mean"\naverage = 2\n')
    assert reproduce(*arguments) == code
    said = capfd.readouterr().err
    assert_mentions(error_line(said), *facts)
    assert "Traceback" not in said


DAMAGED = {
    "no JSON": "{",
    "no query": '{"edges": [[0, 1]], "types": ["up"], "target": "x"}',
    "a type too many": '{"edges": [[0, 1]], "types": ["a", "b"], "query": [0, 1], "target": "x"}',
    "no edges": '{"edges": [], "types": [], "query": [0, 1], "target": "x"}',
    "a negative node": '{"edges": [[0, -1]], "types": ["up"], "query": [0, 1], "target": "x"}',
    "too many nodes": '{"edges": [[0, 99999]], "types": ["up"], "query": [0, 1], "target": "x"}',
    "an edge to oneself": '{"edges": [[1, 1]], "types": ["up"], "query": [0, 1], "target": "x"}',
    "an empty line": "",
    "a question of one": '{"edges": [[0, 1]], "types": ["up"], "query": [1, 1], "target": "x"}',
    "a type that is no text": '{"edges": [[0, 1]], "types": [1], "query": [0, 1], "target": "x"}',
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_question_is_named_by_its_line(
    data: Path, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = data / "data_db9b8f04" / "1.5_test.jsonl.gz"
    with gzip.open(path, "at") as file:
        file.write(line + "\n")
    assert reproduce(*SOME, "--data", str(data)) == 65
    assert_mentions(error_line(capfd.readouterr().err), path, "line 41", "query")


def test_files_that_are_no_gzip_or_have_another_relation_are_refused(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = data / "data_db9b8f04" / "1.6_test.jsonl.gz"
    good = path.read_bytes()
    for damaged in (good[:40], good[:30] + bytes(12) + good[42:], b"no gzip"):
        path.write_bytes(damaged)
        assert reproduce(*SOME, "--data", str(data)) == 65
        error = error_line(capfd.readouterr().err)
        assert_mentions(error, path)
        assert re.search("end-of-stream|decompressing|CRC|gzipped", error)  # Python's reasons
    write(path, [])
    assert reproduce(*SOME, "--data", str(data)) == 65
    assert_mentions(error_line(capfd.readouterr().err), path, "questions")
    other = question(6, random.Random(1)) | {"types": ["up"] * 5 + ["sideways"]}
    write(path, [other])
    assert reproduce(*SOME, "--data", str(data)) == 65
    assert_mentions(error_line(capfd.readouterr().err), path, "sideways")


def test_other_questions_and_other_settings_do_not_mix_with_what_is_there(
    data: Path,
    forked_cells: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert reproduce(*SOME, "--data", str(data)) == 0
    before = cells(Path("runs/reproduction"))
    path = data / "data_db9b8f04" / "1.6_test.jsonl.gz"
    good = path.read_bytes()
    write(path, [question(6, random.Random(9))])
    for row in ("both", "keys"):  # a row that is not there yet, too, before it is trained
        some = ("--rows", row, *SOME[2:])
        assert reproduce(*some, "--data", str(data)) == 65
        error = error_line(capfd.readouterr().err)
        assert_mentions(error, "1.6_test.jsonl.gz", "seed 1", "clutrr", "2-4", "--out")
        assert cells(Path("runs/reproduction")) == before
    path.write_bytes(good)
    change(monkeypatch, "layers = 6", "layers = 2")
    assert reproduce(*SOME, "--data", str(data)) == 2
    before_it, setting, after_it = error_line(capfd.readouterr().err).partition("model.layers")
    assert_mentions(before_it + after_it, "cells/clutrr/2-4/unchanged/seed1.json", "--out")
    assert setting
    assert_mentions(after_it, 6, 2)
    assert cells(Path("runs/reproduction")) == before


def test_a_cell_with_other_questions_than_the_others_is_named(
    data: Path, forked_cells: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("--rows", "both", "keys", *SOME[2:], "--data", str(data)) == 0
    path = Path("runs/reproduction/cells/clutrr/2-4/on_values=false/seed1.json")
    content = json.loads(path.read_text())
    part = content["parts"]["test"]
    part["sentences"] = 199
    for name, values in part["by_sentence"].items():
        part["by_sentence"][name] = values.partition(" ")[2]
    del part["metrics"]
    path.write_text(json.dumps(content))
    capfd.readouterr()
    assert reproduce(*SOME) == 65
    error = error_line(capfd.readouterr().err)
    assert_mentions(error, "clutrr", "2-4", "row keys, seed 1", 199, "row both", 200)


def test_a_cell_asked_for_twice_is_run_once(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    twice = ("--rows", "both", "both", "--seeds", "1", "1", "--pairs", "2-4", "2-4")
    assert reproduce(*twice, "--data", str(data), "--dry-run") == 0
    assert plan(capfd.readouterr().err)[:2] == ["0", "1"]


def test_an_out_that_cannot_be_is_told_before_the_work(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    assert reproduce(*SOME, "--data", str(data), "--out", "file") == 74
    said = capfd.readouterr().err
    assert "Not a directory" in said or "File exists" in said
    assert "is finished" not in said


@pytest.mark.long  # tests/system/test_reproduce_command.py stops cells of the same workers
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_after_any_end_no_process_is_left_and_the_same_command_continues(
    number: signal.Signals, data: Path, forked_cells: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["reproduce", "clutrr", *SOME, "--budget", "30", "--data", str(data)]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments, "--out", str(out)])
    try:
        wait_until(lambda: any(path.stat().st_size for path in out.rglob("metrics.jsonl")))
        assert cell_processes(out)
        process.send_signal(number)
        assert process.wait(PATIENCE) == {15: 143, 2: 130, 9: -9}[number]
        wait_until(lambda: not cell_processes(out))
    finally:
        process.kill()
        process.wait()
    assert not cells(out)
    for folder in (out, tmp_path / "undisturbed"):
        assert run([*arguments, "--out", str(folder)]) == 0
    assert list(cells(out)) == ["cells/clutrr/2-4/epochs=30/seed1.json"]
    assert cells(out) == cells(tmp_path / "undisturbed")


def cell_processes(out: Path) -> list[str]:
    """Return the processes that compute cells of this folder; other users may run theirs."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            parts = line.read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if b"cell" in parts and any(part.startswith(bytes(out)) for part in parts):
            found.append(line.parent.name)
    return found
