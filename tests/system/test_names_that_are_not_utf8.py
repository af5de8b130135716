"""Every command in folders whose names are not UTF-8."""

import shutil
from pathlib import Path

import pytest
from small_runs import make_corpus, write_config
from tiny_model import Command, make_model, make_vocabulary

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_runs(folder: Path, *arguments: str | Path) -> bytes:
    result = Command(folder)(*arguments, stdin="A child .\n")
    assert result.code == 0, result.said
    return result.out


def test_models_are_made_and_used(not_utf8: Path) -> None:
    folder = not_utf8
    config = write_config(folder.with_name("config.toml"), make_corpus(folder.with_name("corpus")))
    shutil.copytree(folder.with_name("corpus"), folder / "corpus")
    paths = ("--corpus", folder / "corpus", "--out", folder / "run")
    for steps in ("2", "3"):
        assert_runs(folder, "train", config, *paths, "--training.steps", steps)
    assert_runs(folder, "average", folder / "run", "--last", "1", "--out", folder / "mean")
    translation = assert_runs(folder, "translate", "--model", folder / "mean")
    (folder / "source").write_text("A child .\n")
    (folder / "target").write_bytes(translation)
    files = ("--source", folder / "source")
    assert_runs(folder, "score", "--model", folder / "mean", *files, "--target", folder / "target")
    reference = ("--reference", folder / "target", "--json", folder / "report.json")
    assert_runs(folder, "evaluate", "--model", folder / "mean", *files, *reference, "--card")


@pytest.mark.parametrize("engine", ["ctranslate2", pytest.param("onnx", marks=pytest.mark.long)])
def test_models_are_exported_and_run_by_other_engines(not_utf8: Path, engine: str) -> None:
    folder = not_utf8
    make_model(folder / "model", make_vocabulary(), tables="layer")
    out = folder / "exported"
    assert_runs(folder, "export", engine, "--model", folder / "model", "--out", out)
    theirs = assert_runs(folder, "translate", "--engine", engine, "--model", out)
    assert theirs == assert_runs(folder, "translate", "--model", folder / "model")
