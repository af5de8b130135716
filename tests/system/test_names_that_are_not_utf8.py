"""Every command in folders whose names are not UTF-8."""

import shutil
from pathlib import Path

import pytest
from small_runs import make_corpus, write_config
from tiny_model import Command, make_model, make_vocabulary

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_runs(not_utf8: Path, *arguments: str | Path) -> bytes:
    result = Command(not_utf8)(*arguments, stdin="A child .\n")
    assert result.code == 0, result.said
    return result.out


def test_models_are_made_and_used(not_utf8: Path) -> None:
    config = write_config(
        not_utf8.with_name("config.toml"), make_corpus(not_utf8.with_name("corpus"))
    )
    shutil.copytree(not_utf8.with_name("corpus"), not_utf8 / "corpus")
    paths = ("--corpus", not_utf8 / "corpus", "--out", not_utf8 / "run")
    for steps in ("2", "3"):
        assert_runs(not_utf8, "train", config, *paths, "--training.steps", steps)
    assert_runs(not_utf8, "average", not_utf8 / "run", "--last", "1", "--out", not_utf8 / "mean")
    translation = assert_runs(not_utf8, "translate", "--model", not_utf8 / "mean")
    (not_utf8 / "source").write_text("A child .\n")
    (not_utf8 / "target").write_bytes(translation)
    files = ("--source", not_utf8 / "source")
    assert_runs(
        not_utf8, "score", "--model", not_utf8 / "mean", *files, "--target", not_utf8 / "target"
    )
    reference = ("--reference", not_utf8 / "target", "--json", not_utf8 / "report.json")
    assert_runs(not_utf8, "evaluate", "--model", not_utf8 / "mean", *files, *reference, "--card")


@pytest.mark.parametrize("engine", ["ctranslate2", pytest.param("onnx", marks=pytest.mark.long)])
def test_models_are_exported_and_run_by_other_engines(not_utf8: Path, engine: str) -> None:
    make_model(not_utf8 / "model", make_vocabulary(), tables="layer")
    out = not_utf8 / "exported"
    assert_runs(not_utf8, "export", engine, "--model", not_utf8 / "model", "--out", out)
    theirs = assert_runs(not_utf8, "translate", "--engine", engine, "--model", out)
    assert theirs == assert_runs(not_utf8, "translate", "--model", not_utf8 / "model")
