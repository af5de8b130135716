"""`edgewise data generate`: two parallel files, both complete or both as they were."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from everything import everything
from messages import assert_mentions

from edgewise.cli.main import INPUT_OUTPUT, TERMINATED, USAGE, Terminated, run


def generate(out: Path, count: int, *options: str) -> int:
    return run(["data", "generate", "--pairs", str(count), "--out", str(out), *options])


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_two_files_are_written_and_replaced_when_asked(tmp_path: Path) -> None:
    for count, options in ((30, []), (20, ["--overwrite"])):
        assert generate(tmp_path / "deep" / "train", count, *options) == 0
        for language in ("en", "de"):
            assert lines(tmp_path / "deep" / f"train.{language}") == count
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["train.de", "train.en"]


@pytest.mark.parametrize("language", ["en", "de"])
def test_one_existing_file_is_enough_to_be_refused(
    language: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"train.{language}").write_text("mine")
    before = everything(tmp_path)
    assert generate(tmp_path / "train", 30) == USAGE
    assert_mentions(capsys.readouterr().err, tmp_path / f"train.{language}", "--overwrite")
    assert everything(tmp_path) == before


def test_a_full_disk_leaves_both_files_as_they_were(
    small_disk: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    disk = small_disk(1)
    assert generate(disk / "train", 100) == 0
    before = everything(disk)
    assert generate(disk / "train", 100_000, "--overwrite") == INPUT_OUTPUT
    assert_mentions(capsys.readouterr().err, "No space left on device")
    assert everything(disk) == before


@pytest.mark.parametrize("existing", [True, False])
def test_a_signal_leaves_both_files_as_they_were(
    existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if existing:
        assert generate(tmp_path / "train", 100) == 0
    before = everything(tmp_path)
    module = import_module("edgewise.cli.data")  # edgewise.cli has an attribute of this name
    made = module.pairs

    def interrupted(count: int, seed: int) -> Iterator[tuple[str, str]]:
        yield from made(count // 2, seed)
        raise Terminated

    monkeypatch.setattr(module, "pairs", interrupted)
    assert generate(tmp_path / "train", 90, "--overwrite") == TERMINATED
    assert everything(tmp_path) == before
