"""edgewise reproduce clutrr, on small sets of questions that are made here."""

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
from selection import long_except
from tiny_model import PROGRAM
from waiting import PATIENCE, wait_until

from edgewise.cli.main import run
from edgewise.reproduction.clutrr import settings

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
    """Another experiment than the one that comes with edgewise."""
    text = settings.FILE.read_text()
    assert old in text
    Path("experiment.toml").write_text(text.replace(old, new))
    monkeypatch.setattr(settings, "FILE", Path("experiment.toml").absolute())


def reproduce(*arguments: str) -> int:
    return run(["reproduce", "clutrr", *arguments])


def cells(out: Path) -> dict[str, dict[str, Any]]:
    """What was measured, without when."""
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
    assert "clutrr/2-3/neither/seed2" in said
    out = Path("one")
    assert len(cells(out)) == 4
    report = (out / "reports/clutrr/clutrr.md").read_text()
    assert "| accuracy | 2 hops | 3 hops | 4 hops | 5 hops, not trained |" in report
    assert "| accuracy | 2 hops | 3 hops | 4 hops, not trained |" in report
    assert "no nearer than the hops" in report
    assert "| best possible | 1.000 |" in report
    assert report.count("| both minus neither |") == 2
    assert (out / "reports/clutrr/clutrr.png").read_bytes().startswith(b"\x89PNG")

    assert reproduce(*some, "--jobs", "1", "--out", "two") == 0
    assert cells(Path("two")) == cells(out)
    for name in ("clutrr.md", "clutrr.json"):
        path = Path("reports/clutrr") / name
        assert (out / path).read_bytes() == (Path("two") / path).read_bytes()

    # What is missing is run, the report follows from cells without the data.
    capfd.readouterr()
    (out / "cells/clutrr/2-4/both/seed2.json").unlink()
    assert reproduce(*some, "--out", "one") == 0
    assert plan(capfd.readouterr().err)[:2] == ["3", "4"]
    shutil.rmtree(out / "reports")
    assert reproduce("--rows", "both", "neither", "--seeds", "2", "--out", "one") == 0
    assert cells(Path("two")) == cells(out)
    assert (out / "reports/clutrr/clutrr.md").read_text() == report


def test_a_dry_run_says_what_it_would_cost(capfd: pytest.CaptureFixture[str]) -> None:
    assert reproduce("--rows", "keys", "--dry-run", "--jobs", "4") == 0
    said = capfd.readouterr().err
    assert plan(said) == ["0", "6", "4", "0:02:00"]
    assert said.count("/keys/seed") == 6
    assert not Path("runs").exists()


def test_it_is_listed_with_its_rows(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "list"]) == 0
    said = capfd.readouterr().out
    assert "clutrr       Kinship graphs" in said
    assert "  gated-keys" in said


SOME = ("--rows", "both", "--seeds", "1", "--sets", "2-4")


@pytest.mark.parametrize(
    ("arguments", "facts", "code"),
    [
        (("--rows", "boht"), ("clutrr", "boht", "both"), 2),
        (("--sets", "1-9"), ("clutrr", "1-9", "2-4", "2-3"), 2),
        (("--jobs", "0"), ("--jobs", 1, 0), 2),
        (("--seeds", "-1"), ("--seeds", 0, "2^63", -1), 2),
        (("--seeds", str(2**70)), ("--seeds", 0, "2^63", 2**70), 2),
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
        assert_mentions(error, "1.6_test.jsonl.gz", "clutrr/2-4/both/seed1", "--out")
    path.write_bytes(good)
    change(monkeypatch, "layers = 6", "layers = 2")
    assert reproduce(*SOME, "--data", str(data)) == 2
    before_it, setting, after_it = error_line(capfd.readouterr().err).partition("model.layers")
    assert_mentions(before_it + after_it, "cells/clutrr/2-4/both/seed1.json", "--out")
    assert setting
    assert_mentions(after_it, 6, 2)
    assert cells(Path("runs/reproduction")) == before


def test_a_cell_with_other_questions_than_the_others_is_told(
    data: Path, forked_cells: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("--rows", "both", "keys", *SOME[2:], "--data", str(data)) == 0
    path = Path("runs/reproduction/cells/clutrr/2-4/keys/seed1.json")
    content = json.loads(path.read_text())
    del content["tests"]["6"]
    path.write_text(json.dumps(content))
    capfd.readouterr()
    assert reproduce(*SOME) == 65
    error = error_line(capfd.readouterr().err)
    assert_mentions(error, "clutrr/2-4/keys/seed1", "clutrr/2-4/both/seed1")


def test_a_cell_asked_for_twice_is_run_once(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    twice = ("--rows", "both", "both", "--seeds", "1", "1", "--sets", "2-4", "2-4")
    assert reproduce(*twice, "--data", str(data)) == 0
    assert plan(capfd.readouterr().err)[:3] == ["0", "1", "1"]


def test_an_out_that_cannot_be_is_told_before_the_work(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    assert reproduce(*SOME, "--data", str(data), "--out", "file") == 74
    said = capfd.readouterr().err
    assert "Not a directory" in said or "File exists" in said
    assert "hops" not in said  # the accuracy of a finished cell, by hops


@pytest.mark.parametrize(
    "number", long_except([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
)
def test_whatever_ends_the_command_no_process_is_left(
    number: signal.Signals, data: Path, tmp_path: Path
) -> None:
    path = data / "data_db9b8f04" / "1.2,1.3,1.4_train.jsonl.gz"
    with gzip.open(path, "rt") as file:
        many = file.read() * 200  # so that it takes a while
    with gzip.open(path, "wt") as file:
        file.write(many)
    out = tmp_path / "out"
    arguments = ["reproduce", "clutrr", *SOME, "--data", str(data), "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])
    try:
        wait_until(lambda: cell_processes(out))
        process.send_signal(number)
        assert process.wait(PATIENCE) == {15: 143, 2: 130, 9: -9}[number]
        wait_until(lambda: not cell_processes(out))
    finally:
        process.kill()
        process.wait()
    assert not cells(out)


def cell_processes(out: Path) -> list[str]:
    """Return the processes that compute cells of this folder; other users may run theirs."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            parts = line.read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if b"graph-cell" in parts and any(part.startswith(bytes(out)) for part in parts):
            found.append(line.parent.name)
    return found


def test_clutrr_is_named_where_it_is_looked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "table1", "clutrr"]) == 2
    assert_mentions(capfd.readouterr().err, "edgewise reproduce clutrr", "--data")
    assert run(["reproduce", "clutr"]) == 2
    assert_mentions(capfd.readouterr().err, "clutr", "clutrr")
