"""Several ranks train as one does, and go on, after any end, as if nothing had been."""

import random
import re
import signal
from pathlib import Path

import pytest
from messages import assert_mentions, error_lines
from ranked import (
    Faults,
    Ranked,
    assert_no_traceback,
    assert_the_same_run,
    records,
    starts,
)
from small_runs import BATCHES, EPOCH, make_corpus, metrics, progress, write_config
from test_kills import logged_step, saved_step
from waiting import wait_until

from edgewise.checkpoint.checkpoints import STEPS as STEP

STEPS = 11
FOREVER = 1_000_000


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    return write_config(folder / "tiny.toml", make_corpus(folder / "corpus"))


def to_the_end(
    config: Path, run: Path, size: int, *options: str, faults: Faults | None = None
) -> Path:
    arguments = ["train", str(config), "--out", str(run), *options]
    with Ranked(arguments, run.with_name(f"{run.name}-said"), size, faults) as ranks:
        assert ranks.codes() == [0] * size, ranks.said()
        for fact in (f"{config.with_name('corpus')}", "parameters"):
            assert ranks.said().count(fact) == 1, ranks.said()
    return run


@pytest.fixture(scope="module")
def alone(config: Path) -> Path:
    return to_the_end(config, config.with_name("alone"), 1)


@pytest.fixture(scope="module")
def two(config: Path) -> Path:
    return to_the_end(config, config.with_name("two"), 2)


@pytest.fixture(scope="module")
def three(config: Path) -> Path:
    return to_the_end(config, config.with_name("three"), 3)


def assert_close(run: Path, expected: Path, tolerance: float = 1e-5) -> None:
    """The same updates of the same batches, with the same losses but for rounding."""
    actual, wanted = metrics(run), metrics(expected)
    assert len(actual) == len(wanted)
    for record, other in zip(actual, wanted, strict=True):
        for name in ("loss", "gradient_norm"):
            if name in other:
                assert record.pop(name) == pytest.approx(other.pop(name), abs=tolerance), record
        assert record == other


# (ranks, batches an update, dropout)
SHARES = [
    (2, 3, 0.2),
    pytest.param(3, 5, 0.2, marks=pytest.mark.long),
    *(pytest.param(*share, marks=pytest.mark.long) for share in [(2, 2, 0.0), (2, 2, 0.2)]),
    *(pytest.param(*share, marks=pytest.mark.long) for share in [(2, 3, 0.0), (3, 3, 0.0)]),
]


@pytest.mark.parametrize(("size", "batches", "dropout"), SHARES)
def test_ranks_share_the_batches_of_one_and_come_to_its_losses(
    size: int, batches: int, dropout: float, config: Path, tmp_path: Path
) -> None:
    options = ["--training.batches", str(batches), "--model.dropout", str(dropout)]
    options += ["--training.validate-every", "3"]
    runs = {}
    for ranks in (1, size):
        folder = tmp_path / f"records-{ranks}"
        faults = Faults(records=str(folder))
        run = to_the_end(config, tmp_path / f"run-{ranks}", ranks, *options, faults=faults)
        runs[ranks] = (run, [records(folder, rank) for rank in range(ranks)])

    (expected, [whole]), (run, shares) = runs[1], runs[size]
    assert [update["step"] for update in whole] == list(range(1, STEPS + 1))
    for number, update in enumerate(whole):
        assert len(update["pairs"]) == batches
        for rank, share in enumerate(shares):
            assert share[number]["step"] == update["step"]
            assert share[number]["pairs"] == update["pairs"][rank::size]
    assert_close(run, expected)
    validated = [record["step"] for record in metrics(run) if record["kind"] == "validation"]
    assert validated == [3, 6, 9]
    assert starts(run) == [(0, size)]


def test_after_each_update_all_ranks_have_the_same_bytes(config: Path, tmp_path: Path) -> None:
    faults = Faults(records=str(tmp_path / "records"))
    to_the_end(config, tmp_path / "run", 3, faults=faults)
    first, *others = (
        [
            (update["step"], update["weights"], update["optimizer"])
            for update in records(tmp_path / "records", rank)
        ]
        for rank in range(3)
    )
    assert [step for step, *_ in first] == list(range(1, STEPS + 1))
    assert len({weights for _, weights, _ in first}) == STEPS
    assert others == [first, first]


def test_a_run_of_several_ranks_comes_to_the_same_bytes_again(
    config: Path, two: Path, three: Path, tmp_path: Path
) -> None:
    for size, expected in ((2, two), (3, three)):
        run = to_the_end(config, tmp_path / f"again-{size}", size)
        assert_the_same_run(run, expected, STEPS)


# (ranks, the one that is killed or all, at its n-th batch of which update, updates between
# checkpoints, the step it goes on from). Of an update's 3 batches the first of two ranks has 2.
KILLS = {
    "the first of two, in mid-epoch": (2, 0, 1, 5, 3, 3),
    "the second of two, in mid-epoch": (2, 1, 1, 5, 3, 3),
    "the first of two, in mid-accumulation": (2, 0, 2, 7, 2, 6),
    "both, in the second epoch": (2, None, 1, EPOCH + 3, 2, 6),
    "the last of three, in mid-epoch": (3, 2, 1, 5, 3, 3),
    "all three, in the second epoch": (3, None, 1, EPOCH + 3, 3, 6),
}


SOME = ("the first of two, in mid-accumulation", "the last of three, in mid-epoch")


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(where, marks=() if where in SOME else pytest.mark.long, id=where)
        for where in KILLS
    ],
)
def test_killed_ranks_go_on_to_the_same_bytes(
    where: str, config: Path, two: Path, three: Path, tmp_path: Path
) -> None:
    size, killed, batch, update, save_every, saved = KILLS[where]
    run = tmp_path / "run"
    arguments = ["train", str(config), "--out", str(run), "--training.save-every", str(save_every)]
    faults = Faults(rank=killed, update=update, batch=batch, signal=signal.SIGKILL)
    with Ranked(arguments, tmp_path / "said", size, faults) as ranks:
        for rank, code in enumerate(ranks.codes()):
            if killed in (None, rank):
                assert code == -signal.SIGKILL, ranks.said()
            else:
                assert code == 1, ranks.said()
                (error,) = error_lines(ranks.logs[rank].read_text())
                assert_mentions(error, "ranks", "checkpoint")
        assert_no_traceback(ranks.said())
    assert saved_step(config, run) == saved
    assert metrics(run)[-1]["step"] == update - 1

    with Ranked(arguments, tmp_path / "said", size) as ranks:
        assert ranks.codes() == [0] * size, ranks.said()
        assert len(re.findall(rf"parameters.*\bupdate {saved}\b", ranks.said())) == 1
    assert_the_same_run(run, two if size == 2 else three, STEPS)
    assert starts(run) == [(0, size), (saved, size)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(2, 1, marks=pytest.mark.long),
        (1, 2),
        pytest.param(3, 2, marks=pytest.mark.long),
    ],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    before: int, after: int, config: Path, alone: Path, tmp_path: Path
) -> None:
    run, folder = tmp_path / "run", tmp_path / "records"
    arguments = ["train", str(config), "--out", str(run)]
    faults = Faults(rank=0, update=5, signal=signal.SIGKILL)
    with Ranked(arguments, tmp_path / "said", before, faults) as ranks:
        assert ranks.codes()[0] == -signal.SIGKILL, ranks.said()
    assert progress(run, 3)["position"] == {"epoch": 0, "index": 3 * BATCHES}

    to_the_end(config, run, after, faults=Faults(records=str(folder)))
    assert starts(run) == [(0, before), (3, after)]
    assert_close(run, alone)

    whole = tmp_path / "whole"
    to_the_end(config, tmp_path / "alone", 1, faults=Faults(records=str(whole)))
    expected = records(whole, 0)[3:]
    for rank in range(after):
        shares = [(update["step"], update["pairs"]) for update in records(folder, rank)]
        assert shares == [(u["step"], u["pairs"][rank::after]) for u in expected]


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.long)])
def test_ranks_killed_at_random_moments_end_as_those_left_alone(
    kills: int, config: Path, tmp_path: Path
) -> None:
    moments, run, newest = random.Random(kills), tmp_path / "run", 0

    def has_saved() -> bool:
        return any(int(path.name[5:]) > newest for path in (run / "checkpoints").glob(STEP))

    arguments = ["train", str(config), "--out", str(run), "--training.validate-every", "2"]
    for kill in range(kills):
        options = ["--training.steps", str(FOREVER), "--training.save-every", str(1 + kill % 2)]
        with Ranked([*arguments, *options], tmp_path / "said", 2) as ranks:
            if kill % 2:
                wait_until(has_saved)
            assert ranks.codes(moments.uniform(0, 1.0)) == [None, None], ranks.said()
            moments.shuffle(ranks.processes)
        step = saved_step(config, run)
        assert newest <= step <= logged_step(run)
        newest = step
    assert newest >= kills // 2

    steps = newest + 3
    options = ["--training.validate-every", "2", "--training.steps", str(steps)]
    to_the_end(config, run, 2, *options)
    undisturbed = to_the_end(config, tmp_path / "undisturbed", 2, *options)
    assert_the_same_run(run, undisturbed, steps)
    left = [str(path.relative_to(run)) for path in run.rglob(".*") if path.name != ".edgewise-lock"]
    assert left == []
