"""What ends a run: signals, ranks that die, numbers that are none, a full disk, too little memory.

Each is said once, in words; the last checkpoint is whole, and the same command goes on from it.
"""

import os
import re
import shutil
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from messages import assert_mentions, error_lines
from ranked import (
    Faults,
    Ranked,
    Torchrun,
    assert_no_traceback,
    assert_the_same_run,
    is_running,
    noted,
    starts,
)
from safetensors.torch import load_file
from selection import long_except
from small_runs import BATCHES, make_corpus, metrics, write_config
from test_kills import logged_step, saved_step
from waiting import wait_until

from edgewise.training.run import is_run

STEPS = 11
FOREVER = 1_000_000


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    return write_config(folder / "tiny.toml", make_corpus(folder / "corpus"))


def command(config: Path, run: Path, *options: str) -> list[str]:
    return ["train", str(config), "--out", str(run), *options]


def to_the_end(config: Path, run: Path, size: int, *options: str) -> Path:
    with Ranked(command(config, run, *options), run.with_name(f"{run.name}-said"), size) as ranks:
        assert ranks.codes() == [0] * size, ranks.said()
    return run


@pytest.fixture(scope="module")
def alone(config: Path) -> Path:
    return to_the_end(config, config.with_name("alone"), 1)


@pytest.fixture(scope="module")
def two(config: Path) -> Path:
    return to_the_end(config, config.with_name("two"), 2)


@pytest.mark.long
def test_torchrun_trains_with_the_package_as_its_module(
    config: Path, two: Path, tmp_path: Path
) -> None:
    with Torchrun(command(config, tmp_path / "run"), tmp_path / "said", 2) as launched:
        assert launched.code() == 0, launched.said()
        for fact in (f"{config.with_name('corpus')}", "parameters", f"{STEPS} updates"):
            assert launched.said().count(fact) == 1, launched.said()
    assert_the_same_run(tmp_path / "run", two, STEPS)
    assert starts(tmp_path / "run") == [(0, 2)]


def assert_stopped_once(said: str, number: signal.Signals, step: int) -> None:
    """One error message, which names the signal and the update that is saved."""
    assert len(error_lines(said)) == 1, said
    assert_mentions(error_lines(said)[0], number.name, f"update {step}")


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_one_rank_ends_all_after_saving(
    number: signal.Signals, code: int, config: Path, two: Path, tmp_path: Path
) -> None:
    run, folder = tmp_path / "run", tmp_path / "records"
    faults = Faults(rank=1, update=5, signal=number, records=str(folder))
    with Torchrun(command(config, run), tmp_path / "said", 2, faults) as launched:
        assert launched.code() == 1, launched.said()
        said = launched.said()
    assert_stopped_once(said, number, 5)
    assert_no_traceback(said)
    assert noted(folder, "codes") == {0: [code], 1: [code]}
    assert saved_step(config, run) == logged_step(run) == 5
    to_the_end(config, run, 2)
    assert_the_same_run(run, two, STEPS)


@pytest.mark.long
def test_sigterm_that_comes_again_when_python_ends_changes_nothing(
    config: Path, tmp_path: Path
) -> None:
    faults = Faults(update=5, signal=signal.SIGTERM, exiting=True)
    with Torchrun(command(config, tmp_path / "run"), tmp_path / "said", 2, faults) as launched:
        assert launched.code() == 1, launched.said()
        said = launched.said()
    assert_stopped_once(said, signal.SIGTERM, 5)
    assert_no_traceback(said)
    assert re.findall(r"exitcode  : (\S+)", said) == ["143", "143"], said


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_that_comes_again_when_the_ranks_part_changes_nothing(
    rank: int, config: Path, tmp_path: Path
) -> None:
    faults = Faults(rank=rank, update=5, signal=signal.SIGTERM, leaving=True)
    with Ranked(command(config, tmp_path / "run"), tmp_path / "said", 2, faults) as ranks:
        assert ranks.codes() == [143, 143], ranks.said()
        said = ranks.said()
    assert said.count("edgewise:") == 1, said
    assert_stopped_once(said, signal.SIGTERM, 5)


def test_sigterm_for_the_loss_of_another_rank_leaves_the_reason_as_it_is(
    config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = command(config, run, "--training.steps", str(FOREVER))
    with Ranked(arguments, tmp_path / "said", 2, Faults(rank=1, leaving=True)) as ranks:
        wait_until(lambda: logged_step(run) > 0)
        ranks.processes[0].kill()
        assert ranks.codes() == [-signal.SIGKILL, 1], ranks.said()
        said = ranks.said()
    (error,) = [line for line in error_lines(said) if "rank 1" in line]
    assert_mentions(error, "ranks", "checkpoint")
    assert "SIGTERM" not in error


def assert_stopped_by_sigterm(config: Path, run: Path, said: str, folder: Path) -> None:
    """All ranks ended after the last update logged, which is saved; the run goes on as it would."""
    last = logged_step(run)
    assert_stopped_once(said, signal.SIGTERM, last)
    assert_no_traceback(said)
    assert noted(folder, "codes") == {0: [143], 1: [143]}
    assert saved_step(config, run) == last
    options = ("--training.steps", str(last + 2))
    to_the_end(config, run, 2, *options)
    undisturbed = to_the_end(config, run.with_name("undisturbed"), 2, *options)
    assert_the_same_run(run, undisturbed, last + 2)
    assert starts(run) == [(0, 2), (last, 2)]


def test_sigterm_to_torchrun_ends_all_ranks_after_saving(config: Path, tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "records"
    arguments = command(config, run, "--training.steps", str(FOREVER))
    faults = Faults(rank=1, update=5, signal=signal.SIGTERM, to_launcher=True, records=str(folder))
    with Torchrun(arguments, tmp_path / "said", 2, faults) as launched:
        assert launched.code() == 1, launched.said()
        said = launched.said()
    assert_stopped_by_sigterm(config, run, said, folder)


@pytest.mark.long
def test_sigterm_to_torchrun_and_all_ranks_twice_still_saves(config: Path, tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "records"
    arguments = command(config, run, "--training.steps", str(FOREVER))
    with Torchrun(arguments, tmp_path / "said", 2, Faults(records=str(folder))) as launched:
        wait_until(lambda: logged_step(run) >= 4)
        ranks = [pid for [pid] in noted(folder, "pids").values()]
        for _ in range(2):
            for pid in (launched.process.pid, *ranks):
                os.kill(pid, signal.SIGTERM)
        assert launched.code() != 0, launched.said()
        wait_until(lambda: not any(map(is_running, ranks)))
        said = launched.said()
    assert_stopped_by_sigterm(config, run, said, folder)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_ends_the_others(rank: int, config: Path, tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "records"
    faults = Faults(rank=rank, update=5, signal=signal.SIGKILL, records=str(folder))
    with Torchrun(command(config, run), tmp_path / "said", 2, faults) as launched:
        assert launched.code(60) == 1, launched.said()
        said = launched.said()
    ranks = [pid for [pid] in noted(folder, "pids").values()]
    assert len(ranks) == 2 and not any(map(is_running, ranks))
    assert_no_traceback(said)
    for error in error_lines(said):
        assert_mentions(error, "ranks", "checkpoint")
    assert noted(folder, "codes").keys() == {1 - rank}
    assert saved_step(config, run) == 3


@pytest.mark.parametrize(
    ("rank", "options"), [pytest.param(0, [], marks=pytest.mark.long), (1, ["--overwrite"])]
)
def test_started_anew_by_torchrun_a_run_goes_on_to_the_same_bytes(
    rank: int, options: list[str], config: Path, two: Path, tmp_path: Path
) -> None:
    run, folder = tmp_path / "run", tmp_path / "records"
    faults = Faults(rank=rank, update=5, signal=signal.SIGKILL, records=str(folder))
    arguments = command(config, run, *options)
    with Torchrun(
        arguments, tmp_path / "said", 2, faults, options=["--max-restarts=1"]
    ) as launched:
        assert launched.code() == 0, launched.said()
        assert len(re.findall(r"parameters.*\bupdate 3\b", launched.said())) == 1
        assert_no_traceback(launched.said())
    assert [len(pids) for pids in noted(folder, "pids").values()] == [2, 2]
    assert_the_same_run(run, two, STEPS)
    assert starts(run) == [(0, 2), (3, 2)]


@pytest.mark.long
def test_two_machines_go_on_when_a_rank_of_one_has_died(
    config: Path, two: Path, tmp_path: Path
) -> None:
    # Each machine has its torchrun, which counts its own restarts only: the other one's rank is
    # started anew as if it were the first time, with --overwrite.
    run, folder = tmp_path / "run", tmp_path / "records"
    faults = Faults(rank=1, update=5, signal=signal.SIGKILL, records=str(folder))
    arguments = command(config, run, "--overwrite")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meet = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    meet += ["--rdzv-id=two", "--local-addr=127.0.0.1", "--max-restarts=3"]
    with (
        Torchrun(arguments, tmp_path / "first", 1, faults, meet=meet) as first,
        Torchrun(arguments, tmp_path / "second", 1, faults, meet=meet) as second,
    ):
        said = [launched.code(120) or launched.said() for launched in (first, second)]
        assert all(isinstance(text, str) for text in said), first.said() + second.said()
    assert_the_same_run(run, two, STEPS)
    assert starts(run)[:2] == [(0, 2), (3, 2)]


def test_a_restart_before_anything_was_begun_still_overwrites(
    config: Path, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    to_the_end(config, run, 1, "--training.seed", "7")
    arguments = command(config, run, "--overwrite")
    with Ranked(arguments, tmp_path / "said", 2) as died:
        died.kill()
    with Ranked(arguments, tmp_path / "said", 2, after=died) as ranks:
        assert ranks.codes() == [0, 0], ranks.said()
    assert_the_same_run(run, two, STEPS)


def test_ranks_started_anew_find_each_other_and_not_those_that_died(
    config: Path, tmp_path: Path
) -> None:
    run, lives, ranks = tmp_path / "run", 4, None
    arguments = command(config, run, "--training.steps", str(FOREVER), "--overwrite")

    def has_begun_or_ended(ranks: Ranked, life: int) -> bool:
        return ranks.codes(0) != [None] * 3 or (is_run(run) and len(starts(run)) == life)

    for life in range(1, lives + 1):  # whether they meet the dead depends on the ports of those
        with Ranked(arguments, tmp_path / "said", 3, after=ranks) as ranks:
            wait_until(partial(has_begun_or_ended, ranks, life))
            assert ranks.codes(0) == [None] * 3, ranks.said()
    assert [size for _, size in starts(run)] == [3] * lives


NOT_FINITE = {
    "a loss that is nan": (
        Faults(rank=1, update=5, loss=float("nan")),
        ("batch 14", "epoch 1", "pairs", "loss", "nan"),
    ),
    "a loss that is infinite": (
        Faults(rank=1, update=5, loss=float("inf")),
        ("batch 14", "epoch 1", "pairs", "loss", "inf"),
    ),
    "a gradient that is infinite": (
        Faults(rank=1, update=5, gradient=float("inf")),
        ("gradient", "3 batches", 13, "epoch 1", "inf"),
    ),
}


@pytest.mark.parametrize("what", long_except(["a gradient that is infinite"], NOT_FINITE))
def test_what_is_not_finite_on_one_rank_stops_all_before_the_update(
    what: str, config: Path, two: Path, tmp_path: Path
) -> None:
    faults, facts = NOT_FINITE[what]
    run = tmp_path / "run"
    with Ranked(command(config, run), tmp_path / "said", 2, faults) as ranks:
        assert ranks.codes() == [1, 1], ranks.said()
        first, second = (log.read_text() for log in ranks.logs)
    assert first.count("edgewise:") == 1 and second == ""
    (error,) = error_lines(first)
    assert_mentions(error, "update 5", *facts, "checkpoint", "training.factor", "training.clip")
    assert_no_traceback(first)
    assert saved_step(config, run) == 3
    assert logged_step(run) == 4
    for path in run.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())
    to_the_end(config, run, 2)
    assert_the_same_run(run, two, STEPS)


@pytest.mark.parametrize("size", [1, 2])
def test_a_full_disk_ends_a_run_that_goes_on_when_there_is_room(
    size: int,
    config: Path,
    alone: Path,
    two: Path,
    small_disk: Callable[[int], Path],
    tmp_path: Path,
) -> None:
    run = small_disk(1) / "run"
    arguments = command(config, run, "--training.save-every", "1", "--training.keep", "9")
    newest = 0
    for _ in range(2):  # the second time there is no room either, and nothing is lost by it
        with Ranked(arguments, tmp_path / "said", size) as ranks:
            assert ranks.codes()[0] == 74, ranks.said()
            assert all(code == 1 for code in ranks.codes()[1:]), ranks.said()
            first, *others = (log.read_text() for log in ranks.logs)
        assert first.count("edgewise:") == 1
        (error,) = error_lines(first)
        assert_mentions(error, run, "No space left on device")
        for said in others:
            (error,) = error_lines(said)
            assert_mentions(error, "rank 1", "ranks", "checkpoint")
        assert_no_traceback(first + "".join(others))
        step = saved_step(config, run)
        assert 0 < step < STEPS and step >= newest
        newest = step
        assert [*run.rglob("*.new*"), *run.rglob(".*.new*")] == []
    small_disk(8)
    with Ranked(arguments, tmp_path / "said", size) as ranks:
        assert ranks.codes() == [0] * size, ranks.said()
    assert_the_same_run(run, alone if size == 1 else two, STEPS)


def test_a_disk_that_the_metrics_fill_ends_a_run_that_goes_on_when_there_is_room(
    config: Path, small_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    disk = small_disk(1)
    run, ballast = disk / "run", disk / "ballast"
    options = ["--training.save-every", str(FOREVER), "--training.validate-every", str(FOREVER)]
    to_the_end(config, run, 1, *options, "--training.steps", "3")
    arguments = command(config, run, *options, "--training.steps", "2000")
    with Ranked(arguments, tmp_path / "said", 1) as ranks:
        wait_until(lambda: logged_step(run) > 3)
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(1 << 20))
        assert ranks.codes() == [74], ranks.said()
        assert ranks.said().count("edgewise:") == 1
        (error,) = error_lines(ranks.said())
        assert_mentions(error, run, "No space left on device")
        assert_no_traceback(ranks.said())
    assert saved_step(config, run) == 3
    ballast.unlink()
    runs = [run, tmp_path / "undisturbed"]
    for out in runs:
        to_the_end(config, out, 1, *options, "--training.steps", "20")
    weights, expected = ((out / "last" / "model.safetensors").read_bytes() for out in runs)
    assert weights == expected
    assert metrics(runs[0]) == metrics(runs[1])


@pytest.mark.parametrize("size", [1, 2])
def test_too_little_memory_names_the_batch_and_what_to_lower(
    size: int, config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    sizes = ["--model.d-model", "256", "--model.d-ff", "4096", "--training.batch-tokens", "4000"]
    faults = Faults(memory=300 << 20)
    with Ranked(command(config, run, *sizes), tmp_path / "said", size, faults) as ranks:
        assert all(code == 1 for code in ranks.codes()), ranks.said()
        said = ranks.said()
    errors = [line for line in error_lines(said) if re.search(r"\bbatch \d\b", line)]
    assert errors, said
    settings = ("training.batch_tokens", 4000, "training.batches", BATCHES)
    assert_mentions(errors[0], "memory", "cpu", "update 1", *settings)
    for size_of_batch in (r"\d+ pairs", r"\d+ source", r"\d+ target"):
        assert re.search(size_of_batch, errors[0]), said
    assert_no_traceback(said)


def test_more_ranks_than_batches_are_refused_before_anything_is_written(
    config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = command(config, run, "--training.batches", "2")
    with Ranked(arguments, tmp_path / "said", 3) as ranks:
        assert all(ranks.codes()), ranks.said()
        assert ranks.codes()[0] == 2
        assert ranks.said().count("edgewise:") == 1, ranks.said()
        assert_mentions(error_lines(ranks.said())[0], "training.batches", "ranks", 3, 2)
        assert_no_traceback(ranks.said())
    assert not run.exists()


def missing(corpus: Path, folder: Path) -> tuple[str, ...]:
    return ("corpus",)


def damaged(corpus: Path, folder: Path) -> tuple[str, ...]:
    shutil.copytree(corpus, folder)
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=os.path.getsize)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    return "damaged", largest.name


def another(corpus: Path, folder: Path) -> tuple[str, ...]:
    make_corpus(folder, seed=5)
    return "rank 1", "rank 0"


@pytest.mark.parametrize("made", [missing, damaged, another])
def test_a_corpus_that_fails_on_one_rank_is_told_once_by_that_rank(
    made: Callable[[Path, Path], tuple[str, ...]], config: Path, tmp_path: Path
) -> None:
    run, corpus = tmp_path / "run", tmp_path / "elsewhere"
    to_the_end(config, run, 2, "--training.steps", "1")
    before = contents(run)
    facts = made(config.with_name("corpus"), corpus)
    elsewhere = {1: ["--corpus", str(corpus)]}
    arguments = command(config, run, "--overwrite")
    with Ranked(arguments, tmp_path / "said", 3, only=elsewhere) as ranks:
        assert all(ranks.codes()), ranks.said()
        said = ranks.said()
    assert said.count("edgewise:") == said.count("edgewise: rank 1: ") == 1, said
    (error,) = error_lines(said)
    assert_mentions(error, corpus, *facts)
    assert_no_traceback(said)
    assert contents(run) == before


def contents(run: Path) -> dict[Path, bytes]:
    """All that is in a folder, but for the mark of who writes there."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".edgewise-lock"]
    return {path: path.read_bytes() for path in files}
