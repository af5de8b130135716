"""A run that is ended in any way and continued comes to the bytes of one that was left alone."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from messages import assert_mentions, error_lines
from small_runs import (
    BATCHES,
    EPOCH,
    Started,
    command,
    make_corpus,
    metrics,
    progress,
    result,
    write_config,
)

STEPS = 11


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    return write_config(folder / "tiny.toml", make_corpus(folder / "corpus"))


@pytest.fixture(scope="module")
def undisturbed(config: Path) -> Path:
    run = config.with_name("undisturbed")
    done = command("train", str(config), "--out", str(run))
    assert done.returncode == 0, done.stderr
    return run


def assert_the_same_run(run: Path, expected: Path) -> None:
    actual_files, expected_files = result(run, STEPS), result(expected, STEPS)
    for name, content in expected_files.items():
        assert actual_files[name] == content, f"{name} differs"
    assert metrics(run) == metrics(expected)
    steps = [record["step"] for record in metrics(run) if record["kind"] == "update"]
    assert steps == list(range(1, STEPS + 1))


def assert_resumed(said: str, step: int) -> None:
    """The line with the number of parameters names the update that the run continues after."""
    assert len(re.findall(rf"parameters.*\bupdate {step}\b", said)) == 1, said


def test_an_undisturbed_run_logs_each_update_and_keeps_the_newest_checkpoints(
    undisturbed: Path,
) -> None:
    records = metrics(undisturbed)
    assert [r["step"] for r in records if r["kind"] == "update"] == list(range(1, STEPS + 1))
    assert [r["step"] for r in records if r["kind"] == "validation"] == [4, 8]
    assert sorted(path.name for path in (undisturbed / "checkpoints").glob("step-*")) == [
        "step-00000006",
        "step-00000009",
        "step-00000011",
    ]


def test_another_seed_comes_to_other_bytes(config: Path, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["train", str(config), "--out", str(run), "--training.seed", "2"]
    assert Started(arguments, tmp_path / "log").code() == 0
    for name, content in result(undisturbed, STEPS).items():
        if name != "state/progress.json":
            assert result(run, STEPS)[name] != content


# (updates between checkpoints, the batch at which it is killed, the step it goes on from)
KILLS = {
    "in mid-epoch": (3, 4 * BATCHES + 1, 3),
    "at the end of an epoch": (EPOCH, EPOCH * BATCHES + 1, EPOCH),
    "in mid-accumulation": (2, 6 * BATCHES + 2, 6),
}


@pytest.mark.parametrize("where", KILLS)
def test_a_killed_run_goes_on_to_the_same_bytes(
    where: str, config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    save_every, batch, saved = KILLS[where]
    run = tmp_path / "run"
    arguments = ["train", str(config), "--out", str(run)]
    arguments += ["--training.save-every", str(save_every)]
    killed = Started(arguments, tmp_path / "log", signal=signal.SIGKILL, at_batch=batch)
    assert killed.code() == -signal.SIGKILL, killed.said()

    before = progress(run, saved)
    assert max((run / "checkpoints").glob("step-*")).name == f"step-{saved:08d}"
    consumed = {"epoch": 0, "index": saved * BATCHES}
    if where == "in mid-accumulation":
        consumed = {"epoch": 1, "index": (saved - EPOCH) * BATCHES}
    assert before["position"] == consumed
    assert metrics(run)[-1]["step"] == (batch - 1) // BATCHES

    if where == "in mid-epoch":
        resumed = command(*arguments)
        assert resumed.returncode == 0, resumed.stderr
        assert_resumed(resumed.stderr, saved)
    else:
        again = Started(arguments, tmp_path / "log")
        assert again.code() == 0, again.said()
        assert_resumed(again.said(), saved)
    assert_the_same_run(run, undisturbed)
    starts = json.loads((run / "run.json").read_bytes())["starts"]
    assert [start["step"] for start in starts] == [0, saved]


@pytest.mark.parametrize(
    ("number", "code", "batch"), [(signal.SIGTERM, 143, 20), (signal.SIGINT, 130, 13)]
)
def test_a_signal_saves_the_update_it_falls_in(
    number: int, code: int, batch: int, config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run, step = tmp_path / "run", (batch - 1) // BATCHES + 1
    arguments = ["train", str(config), "--out", str(run)]
    stopped = Started(arguments, tmp_path / "log", signal=number, at_batch=batch)
    assert stopped.code() == code, stopped.said()
    (error,) = error_lines(stopped.said())
    assert_mentions(error, signal.Signals(number).name, f"update {step}")
    assert "Traceback" not in stopped.said()
    assert progress(run, step)["step"] == metrics(run)[-1]["step"] == step

    resumed = Started(arguments, tmp_path / "log")
    assert resumed.code() == 0, resumed.said()
    assert_resumed(resumed.said(), step)
    assert_the_same_run(run, undisturbed)


def test_a_signal_from_outside_ends_a_real_process_with_its_number(
    config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = ["train", str(config), "--out", str(run), "--training.steps", "1000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgewise", *arguments], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:  # from the first update on, signals are caught
            if line.startswith("update"):
                break
        os.kill(process.pid, signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait() == 143
    finally:
        process.kill()
        process.wait()
    newest = int(max((run / "checkpoints").glob("step-*")).name[5:])
    (error,) = error_lines(said)
    assert_mentions(error, "SIGTERM", f"update {newest}")
    assert metrics(run)[-1]["step"] == newest


def test_continuing_a_complete_run_says_so_and_changes_nothing(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    def files() -> dict[str, bytes]:
        return {
            str(path.relative_to(undisturbed)): path.read_bytes()
            for path in undisturbed.rglob("*")
            if path.is_file() and path.name != ".edgewise-lock"
        }

    before = files()
    again = Started(["train", str(config), "--out", str(undisturbed)], tmp_path / "log")
    assert again.code() == 0
    assert_mentions(again.said(), f"{STEPS} updates", "--training.steps")
    assert files() == before


def test_more_steps_continue_a_complete_run_to_the_bytes_of_a_longer_one(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = ["train", str(config), "--out", str(run), "--training.steps"]
    shorter = Started([*arguments, "7"], tmp_path / "log")
    assert shorter.code() == 0, shorter.said()
    assert progress(run, 7)["step"] == metrics(run)[-1]["step"] == 7
    longer = Started(
        ["train", str(run / "config.toml"), "--training.steps", str(STEPS)], tmp_path / "log"
    )
    assert longer.code() == 0, longer.said()
    assert_the_same_run(run, undisturbed)
