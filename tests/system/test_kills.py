"""Killed again and again, at any moment: no checkpoint is half, and the end is the same."""

import json
import random
import signal
from pathlib import Path

import pytest
from small_runs import Started, make_corpus, metrics, result, write_config
from waiting import wait_until

from edgewise.checkpoint.checkpoints import STEPS, Checkpoints
from edgewise.data.corpus import Corpus
from edgewise.model.settings import ModelSettings

FOREVER = 1_000_000


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    return write_config(folder / "tiny.toml", make_corpus(folder / "corpus"))


def arguments(config: Path, run: Path, steps: int, save_every: int = 1) -> list[str]:
    return [
        *("train", str(config), "--out", str(run), "--training.steps", str(steps)),
        *("--training.save-every", str(save_every), "--training.validate-every", "2"),
    ]


def saved_step(config: Path, run: Path) -> int:
    """The step that training would go on from, 0 if it would start anew; nothing is damaged."""
    vocabulary = Corpus(config.with_name("corpus")).vocabulary
    warnings: list[str] = []
    saved = Checkpoints(run, ModelSettings(), vocabulary).load_last(warnings.append)
    assert warnings == []
    if saved is None:
        return 0
    assert saved.progress["step"] == saved.step
    assert {name.partition("/")[0] for name in saved.optimizer} == {"exp_avg", "exp_avg_sq", "step"}
    assert len(saved.optimizer) == 3 * len(saved.weights)
    assert set(saved.optimizer["step/embedding.weight"].flatten().tolist()) == {saved.step}
    return saved.step


def logged_step(run: Path) -> int:
    """The last step in the log, but for a line that was torn."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def finish_and_compare(config: Path, run: Path, steps: int, log: Path) -> None:
    """The end of a disturbed run is that of an undisturbed one, and nothing is left lying about."""
    last = Started(arguments(config, run, steps), log)
    assert last.code() == 0, last.said()
    expected = run.with_name("undisturbed")
    undisturbed = Started(arguments(config, expected, steps, save_every=FOREVER), log)
    assert undisturbed.code() == 0, undisturbed.said()
    for name, content in result(expected, steps).items():
        assert result(run, steps)[name] == content, f"{name} differs"
    assert metrics(run) == metrics(expected)
    left = [str(path.relative_to(run)) for path in run.rglob(".*") if path.name != ".edgewise-lock"]
    assert left == []


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.long)])
def test_a_run_killed_at_random_moments_ends_as_one_left_alone(
    kills: int, config: Path, tmp_path: Path
) -> None:
    moments, run, newest = random.Random(kills), tmp_path / "run", 0
    for kill in range(kills):
        process = Started(arguments(config, run, FOREVER, 1 + kill % 2), tmp_path / "log")
        if kill % 2:  # else a slow machine might never save anything
            wait_until(lambda: any((run / "checkpoints").glob(STEPS)))
        assert process.code(moments.uniform(0, 1.0)) is None, process.said()
        process.kill()
        step = saved_step(config, run)
        assert newest <= step <= logged_step(run)
        newest = step
    assert newest > 0
    finish_and_compare(config, run, newest + 3, tmp_path / "log")


# A start has 3 renames, a checkpoint 7 or more, a best model 6: these are all of two updates.
RENAMES = range(1, 25)


@pytest.mark.parametrize(
    "renames", [RENAMES[::4], pytest.param(RENAMES, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_a_run_killed_before_each_of_its_renames_in_turn_ends_as_one_left_alone(
    renames: range, config: Path, tmp_path: Path
) -> None:
    run, newest = tmp_path / "run", 1
    begun = Started(arguments(config, run, newest), tmp_path / "log")
    assert begun.code() == 0, begun.said()
    for rename in renames:
        process = Started(
            *(arguments(config, run, FOREVER), tmp_path / "log"),
            signal=signal.SIGKILL,
            at_rename=rename,
        )
        assert process.code() == -signal.SIGKILL, process.said()
        step = saved_step(config, run)
        assert newest <= step <= logged_step(run)
        newest = step
    finish_and_compare(config, run, newest + 3, tmp_path / "log")


@pytest.mark.parametrize("rename", [*range(1, 9), pytest.param(12, marks=pytest.mark.long)])
def test_a_run_killed_while_it_is_overwritten_is_the_old_one_or_the_new_one(
    rename: int, config: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    for steps, options in ((2, []), (1, ["--training.seed", "9", "--overwrite"])):
        process = Started(
            *([*arguments(config, run, steps), *options], log),
            signal=signal.SIGKILL if options else 0,
            at_rename=rename,
        )
        assert process.code() == (-signal.SIGKILL if options else 0), process.said()
    # The same command without --overwrite goes on with whichever there is.
    codes = [
        Started([*arguments(config, run, 3), *options], log).code()
        for options in ([], ["--training.seed", "9"])
    ]
    assert codes in ([0, 2], [2, 0])
    left = [str(path.relative_to(run)) for path in run.rglob(".*") if path.name != ".edgewise-lock"]
    assert left == []
