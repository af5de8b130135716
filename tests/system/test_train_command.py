"""`edgewise train` and `edgewise average`: what they do, and what they say to bad input."""

import errno
import importlib
import json
import os
import re
import shutil
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from everything import everything
from messages import assert_mentions, raises
from small_runs import Started, make_corpus, metrics, result, write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from edgewise import __version__
from edgewise.checkpoint.model_folder import model_languages, read_model
from edgewise.cli.main import BAD_DATA, FAILURE, INPUT_OUTPUT, USAGE, run
from edgewise.data.corpus import Corpus
from edgewise.data.prepare import Bitext, prepare
from edgewise.data.text import TextFile
from edgewise.decoding import Translator
from edgewise.errors import ArgumentError

STEPS = 5


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    path = write_config(folder / "tiny.toml", make_corpus(folder / "corpus"))
    text = path.read_text()
    for old, new in (("steps = 11", f"steps = {STEPS}"), ("save_every = 3", "save_every = 2")):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def trained(config: Path) -> Path:
    """A complete run, with checkpoints after 2, 4 and 5 updates; a test may change `copied`."""
    out = config.with_name("trained")
    assert run(["train", str(config), "--out", str(out)]) == 0
    return out


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


@pytest.fixture(scope="module")
def other_vocabulary(config: Path) -> Path:
    return make_corpus(config.with_name("other-vocabulary"), vocab=420)


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    """What the command says when it exits with this code. (A traceback would end the test.)"""
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "edgewise: " in captured.err
    return captured.err.partition("edgewise: ")[2].removesuffix("\n")


def accepted(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the command says when all is well."""
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert captured.out == ""
    return captured.err


def changed(config: Path, tmp_path: Path, old: str, new: str) -> Path:
    """The configuration with one thing changed."""
    text = config.read_text()
    assert text.count(old) == 1
    path = tmp_path / "changed.toml"
    path.write_text(text.replace(old, new))
    return path


def settings_of(out: Path) -> dict[str, Any]:
    return tomllib.loads((out / "config.toml").read_text())


# Settings.


def test_a_misspelled_setting_in_the_file_is_told_the_nearest_name(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(config, tmp_path, "\ndropout", "\ndropuot")
    said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
    assert_mentions(said, "model.dropuot", path, "--model.dropout")
    assert not (tmp_path / "run").exists()


def test_a_misspelled_section_in_the_file_is_told_the_nearest_name(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(config, tmp_path, "[model]", "[modle]")
    said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
    assert_mentions(said, "modle.encoder_layers", "--model.encoder-layers")


def test_a_misspelled_flag_is_told_the_nearest_name(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", config, "--out", tmp_path / "run", "--model.dropuot", "0.1")
    said = refused(capsys, USAGE, *arguments)
    assert_mentions(said, "--model.dropuot", "--model.dropout")
    assert len(said.splitlines()) == 1


def test_a_misspelled_variable_is_told_the_nearest_name(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGEWISE_MODEL_DROPUOT", "0.1")
    said = refused(capsys, USAGE, "train", config, "--out", tmp_path / "run")
    assert_mentions(said, "EDGEWISE_MODEL_DROPUOT", "EDGEWISE_MODEL_DROPOUT")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("flag", "value", "facts"),
    [
        ("--model.dropout", "1.5", ("model.dropout", 1, "1.5")),
        ("--model.dropout", "much", ("model.dropout", "number", "much")),
        ("--model.encoder-layers", "0", ("model.encoder_layers", 1, 0)),
        ("--model.norm", "middle", ("model.norm", "post", "pre", "middle")),
        ("--model.d-model", "15", ("model.d_model", 2, 15)),
        ("--model.heads", "3", ("d_model", 16, "heads", 3)),
        ("--training.steps", "0", ("training.steps", 1, 0)),
        ("--training.steps", "many", ("training.steps", "integer", "many")),
        ("--training.clip", "-1", ("training.clip", 0, -1)),
        ("--training.factor", "nan", ("training.factor", "nan")),
        ("--training.factor", "inf", ("training.factor", 1000000, "inf")),
    ],
)
def test_a_value_out_of_range_is_named(
    flag: str,
    value: str,
    facts: tuple[object, ...],
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("train", config, "--out", tmp_path / "run", flag, value)
    assert_mentions(refused(capsys, USAGE, *arguments), *facts)
    assert not (tmp_path / "run").exists()


def test_values_of_the_file_are_checked_as_those_of_flags_are(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(config, tmp_path, "d_ff = 32", "d_ff = 0")
    said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
    assert_mentions(said, "model.d_ff", 1, 0)


def test_all_mistakes_are_told_at_once(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(config, tmp_path, "d_ff = 32", "d_ff = 0")
    arguments = ("train", path, "--out", tmp_path / "run", "--training.keep", "0")
    (said,) = refused(capsys, USAGE, *arguments).splitlines()
    assert_mentions(said, "model.d_ff", "training.keep")


def test_a_missing_configuration_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "nowhere.toml", tmp_path):
        said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
        assert_mentions(said, path, "configs/")
        assert len(said.splitlines()) == 1
    assert "CONFIG" in refused(capsys, USAGE, "train")


@pytest.mark.parametrize("content", [b"steps = [1,\nkeep", b"corpus = '\xff'"])
def test_a_broken_configuration_is_named(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
    assert str(path) in said
    if b"\n" in content:
        assert "line 2" in said


def test_what_must_be_set_is_named(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, USAGE, "train", config)
    assert_mentions(said, "--out")
    assert "corpus" not in said
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    said = refused(capsys, USAGE, "train", empty, "--out", tmp_path / "run")
    assert_mentions(said, "--corpus")
    assert "--out" not in said


def test_flags_come_before_the_environment_and_that_before_the_file(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ("train", config, "--out", tmp_path / "run", "--overwrite", "--training.steps", "1")
    accepted(capsys, *arguments)
    of_file = settings_of(tmp_path / "run")
    assert (of_file["model"]["dropout"], of_file["model"]["norm"]) == (0.2, "post")
    monkeypatch.setenv("EDGEWISE_MODEL_DROPOUT", "0.3")
    monkeypatch.setenv("EDGEWISE_TRAINING_SAVE_EVERY", "none")
    accepted(capsys, *arguments)
    of_environment = settings_of(tmp_path / "run")
    assert of_environment["model"] == of_file["model"] | {"dropout": 0.3}
    assert of_environment["training"] == of_file["training"] | {"save_every": "none"}
    accepted(capsys, *arguments, "--model.dropout", "0.4")
    of_flag = settings_of(tmp_path / "run")
    assert of_flag == of_environment | {"model": of_file["model"] | {"dropout": 0.4}}


# Corpus and folder.


def test_a_corpus_that_is_none_is_refused(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", config, "--out", tmp_path / "run", "--corpus")
    for missing in (tmp_path / "nowhere", config):
        said = refused(capsys, USAGE, *arguments, missing)
        assert_mentions(said, missing, "corpus")
    said = refused(capsys, BAD_DATA, *arguments, tmp_path)
    assert_mentions(said, tmp_path, "corpus", "manifest.json")
    model = (trained / "last").resolve()
    said = refused(capsys, BAD_DATA, *arguments, model)
    assert_mentions(said, model)
    assert_mentions(said.replace(str(model), ""), "corpus", "model")
    assert not (tmp_path / "run").exists()


def test_a_damaged_corpus_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Path(shutil.copytree(config.with_name("corpus"), tmp_path / "corpus"))
    tokens = corpus / "train" / "tokens.bin"
    content = bytearray(tokens.read_bytes())
    content[len(content) // 2] ^= 1
    tokens.write_bytes(content)
    said = refused(capsys, BAD_DATA, "train", config, "--corpus", corpus, "--out", tmp_path / "run")
    assert_mentions(said, corpus, "damaged", "train/tokens.bin")


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_folder_of_something_else_is_left_alone(
    overwrite: list[str], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
    arguments = ("train", config, "--out", tmp_path / "photos", *overwrite)
    said = refused(capsys, USAGE, *arguments)
    assert_mentions(said, tmp_path / "photos", "run", "--out")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]], ids=["", "overwrite"])
def test_a_folder_of_another_program_with_a_config_toml_is_left_alone(
    overwrite: list[str], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site" / "best").mkdir(parents=True)
    (tmp_path / "site" / "config.toml").write_text("title = 'mine'")
    said = refused(capsys, USAGE, "train", config, "--out", tmp_path / "site", *overwrite)
    assert_mentions(said, tmp_path / "site", "run", "--out")
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["best", "config.toml"]


@pytest.mark.parametrize(
    "left",
    [[".edgewise-lock"], [".edgewise-lock", "run.json"], [".edgewise-lock", "checkpoints"]],
)
def test_a_folder_that_a_kill_left_before_its_configuration_was_written_is_begun(
    left: list[str], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    for name in left:
        if name == "checkpoints":
            (tmp_path / "run" / name).mkdir()
        else:
            (tmp_path / "run" / name).write_text("{}")
    accepted(capsys, "train", config, "--out", tmp_path / "run", "--training.steps", "1")


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--training.batch-tokens", "5"], ("batch_tokens", 5)),
        (["--training.device", "nonsense"], ("training.device", "auto", "cpu", "nonsense")),
        (["--training.device", "cuda:77"], ("training.device", "auto", "cpu", "cuda:77")),
        (["--training.device", "meta"], ("training.device", "auto", "cpu", "meta")),
        (["--training.mixed-precision"], ("training.mixed_precision", "CPU")),
    ],
    ids=["batch_tokens", "no device", "no such GPU", "meta", "mixed precision"],
)
class TestASettingThatDoesNotFit:
    """What only the corpus or the machine can tell is told before anything is written."""

    def test_is_named(
        self,
        flags: list[str],
        facts: tuple[object, ...],
        config: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        arguments = ("train", config, "--out", tmp_path / "run", *flags)
        assert_mentions(refused(capsys, USAGE, *arguments), *facts)

    def test_can_be_corrected(
        self,
        flags: list[str],
        facts: tuple[object, ...],
        config: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        refused(capsys, USAGE, "train", config, "--out", tmp_path / "run", *flags)
        accepted(capsys, "train", config, "--out", tmp_path / "run", "--training.steps", "1")

    def test_does_not_cost_the_run_that_was_to_be_overwritten(
        self,
        flags: list[str],
        facts: tuple[object, ...],
        config: Path,
        copied: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        before = result(copied, STEPS)
        refused(capsys, USAGE, "train", config, "--out", copied, "--overwrite", *flags)
        assert result(copied, STEPS) == before


def test_the_longest_sentence_is_told(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = 1 + max(
        int(side.max()) for side in Corpus(config.with_name("corpus")).train.lengths()
    )
    arguments = ("train", config, "--out", tmp_path / "run", "--training.batch-tokens")
    said = refused(capsys, USAGE, *arguments, str(longest - 1))
    assert_mentions(said, "batch_tokens", longest, longest - 1)
    enough = (*arguments[:3], tmp_path / "enough", arguments[4], str(longest))
    accepted(capsys, *enough, "--training.steps", "1")


# Continuing.


def test_settings_that_the_weights_depend_on_cannot_change(
    config: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = result(copied, STEPS), (copied / "config.toml").read_bytes()
    arguments = ("train", config, "--out", copied, "--training.steps", "7")
    said = refused(capsys, USAGE, *arguments, "--model.dropout", "0.25", "--training.seed", "4")
    assert_mentions(said, copied, "model.dropout", 0.2, 0.25)
    assert_mentions(said.replace(str(copied), ""), "training.seed", 1, 4)
    assert "training.steps" not in said
    assert (result(copied, STEPS), (copied / "config.toml").read_bytes()) == before


def test_a_corpus_that_changed_is_refused(
    config: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocabulary = Corpus(config.with_name("corpus")).vocabulary
    other = make_corpus(tmp_path / "other", seed=8, vocab=vocabulary)
    said = refused(capsys, BAD_DATA, "train", config, "--out", copied, "--corpus", other)
    assert_mentions(said, other, "corpus", copied)
    assert "vocabulary" not in said


def test_the_same_corpus_may_lie_elsewhere(
    config: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Path(shutil.copytree(config.with_name("corpus"), tmp_path / "moved"))
    said = accepted(capsys, "train", config, "--out", copied, "--corpus", moved)
    assert_mentions(said, f"{STEPS} updates", "--training.steps")


def test_another_vocabulary_than_the_model_s_is_refused(
    config: Path,
    copied: Path,
    trained: Path,
    other_vocabulary: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("train", config, "--corpus", other_vocabulary, "--out")
    said = refused(capsys, BAD_DATA, *arguments, copied)
    assert_mentions(said, other_vocabulary, copied)
    assert_mentions(said.replace(str(other_vocabulary), ""), "vocabulary")
    model = trained / "last"
    said = refused(capsys, BAD_DATA, *arguments, tmp_path / "new", "--init-from", model)
    assert_mentions(said, other_vocabulary, model, f"--vocab {model}")
    assert_mentions(said.replace(str(other_vocabulary), ""), "vocabulary")


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_leads_to_the_same_end(
    config: Path, trained: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = copied / "checkpoints" / f"step-{STEPS:08d}"
    damaged = newest / "state" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    said = accepted(capsys, "train", config, "--out", copied)
    assert_mentions(said, "warning", newest / "state", "damaged", "optimizer.safetensors")
    assert_mentions(said, "update 4")
    assert result(copied, STEPS) == result(trained, STEPS)
    assert metrics(copied) == metrics(trained)


def test_damaged_checkpoints_only_are_an_error(
    config: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = sorted((copied / "checkpoints").glob("step-*/state"))
    assert len(states) == 2
    for state in states:
        (state / "progress.json").write_text("{}")
    said = refused(capsys, BAD_DATA, "train", config, "--out", copied)
    assert_mentions(said, copied, "damaged", "--overwrite", "--init-from")


@pytest.mark.parametrize("name", ["config.toml", "run.json"])
@pytest.mark.parametrize("content", ["", "{]", "{}", "steps = 1"])
def test_a_damaged_record_of_the_run_is_named(
    name: str, content: str, config: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / name).write_text(content)
    said = refused(capsys, BAD_DATA, "train", config, "--out", copied)
    assert str(copied / name) in said


def test_a_second_process_in_the_same_folder_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["train", str(config), "--out", str(out), "--training.steps", "1000000"]
    first = Started(arguments, tmp_path / "log")
    try:
        while not (out / "metrics.jsonl").exists():
            assert first.code(timeout=0.05) is None, first.said()
        said = refused(capsys, USAGE, *arguments)
        assert_mentions(said, "process", out, "--out")
        said = refused(capsys, USAGE, *arguments, "--overwrite")
        assert_mentions(said, "process", out, "--out")
        assert first.code(timeout=0) is None
    finally:
        first.kill()
    accepted(capsys, *arguments[:-1], "1")


def test_overwrite_starts_afresh(
    config: Path, trained: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", config, "--out", copied, "--training.seed", "6", "--training.steps", "1")
    said = accepted(capsys, *arguments, "--overwrite")
    assert_mentions(said, copied)
    assert f"update {STEPS}" not in said
    assert [record["step"] for record in metrics(copied)] == [1]
    assert metrics(copied)[0]["loss"] != metrics(trained)[0]["loss"]
    assert [path.name for path in (copied / "checkpoints").iterdir()] == ["step-00000001"]
    assert not (copied / "best").is_symlink()
    (start,) = json.loads((copied / "run.json").read_bytes())["starts"]
    assert start["step"] == 0


def test_init_from_starts_from_the_weights_of_a_model(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A learning rate so small that the weights stay what they were.
    arguments = ("--out", tmp_path / "run", "--training.factor", "1e-30", "--training.steps", "1")
    accepted(capsys, "train", config, "--init-from", trained / "last", *arguments)
    (start,) = json.loads((tmp_path / "run" / "run.json").read_bytes())["starts"]
    assert start["step"] == 0
    expected, actual = read_model(trained / "last")[0], read_model(tmp_path / "run" / "last")[0]
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
    assert metrics(tmp_path / "run")[0]["loss"] < metrics(trained)[0]["loss"] - 0.5


def test_init_from_a_model_of_another_shape_names_the_parameter(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--out", tmp_path / "run", "--init-from", trained / "last")
    said = refused(capsys, BAD_DATA, "train", config, *arguments, "--model.d-ff", "48")
    assert_mentions(said, trained / "last", "decoder.0.feed_forward.inner.bias", "[32]", "[48]")
    arguments = ("--out", tmp_path / "another", "--init-from", tmp_path)
    said = refused(capsys, BAD_DATA, "train", config, *arguments)
    assert_mentions(said, tmp_path, "model", "manifest.json")


def test_an_init_from_that_is_refused_can_be_corrected(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", config, "--out", tmp_path / "run", "--training.steps", "1", "--init-from")
    refused(capsys, USAGE, *arguments, trained)
    accepted(capsys, *arguments, trained / "last")


def test_a_run_ends_when_validation_no_longer_gets_better(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The weights stay as they are, so that no validation after the first is better.
    arguments = ("train", config, "--out", tmp_path / "run", "--training.factor", "1e-30")
    arguments += ("--training.steps", "9", "--training.validate-every", "1", "--training.patience")
    said = accepted(capsys, *arguments, "2")
    assert_mentions(said, "3 updates", "--training.patience")
    losses = [r["loss"] for r in metrics(tmp_path / "run") if r["kind"] == "validation"]
    assert len(losses) == 3 and len(set(losses)) == 1
    assert (tmp_path / "run" / "best").resolve().name == "best-00000001"
    said = accepted(capsys, *arguments, "2")
    assert_mentions(said, "3 updates", "--training.patience")
    said = accepted(capsys, *arguments, "3")
    assert_mentions(said, "4 updates", "--training.patience")
    said = accepted(capsys, *arguments, "none")
    assert_mentions(said, "9 updates", "--training.steps")


# What a run leaves.


def test_tensorboard_has_what_the_log_has(trained: Path) -> None:
    board = EventAccumulator(str(trained / "tensorboard"))
    board.Reload()
    records = metrics(trained)
    assert {record["kind"] for record in records} == {"update", "validation"}
    for kind in ("update", "validation"):
        expected = {r["step"]: r["loss"] for r in records if r["kind"] == kind}
        actual = {event.step: event.value for event in board.Scalars(f"{kind}/loss")}
        assert actual == pytest.approx(expected)


def test_the_run_knows_its_data_and_its_versions(config: Path, trained: Path) -> None:
    corpus = Corpus(config.with_name("corpus"))
    about = json.loads((trained / "run.json").read_bytes())
    assert about["corpus"] == corpus.digest
    assert about["vocabulary"] == corpus.vocabulary.digest
    (start,) = about["starts"]
    assert start["step"] == 0
    assert start["edgewise"] == __version__
    assert start["torch"] == version("torch")
    assert start["threads"] == 1
    assert {"python", "numpy", "sentencepiece", "safetensors", "time"} <= start.keys()


def test_the_configuration_of_a_run_is_one_that_continues_it(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "config.toml").read_bytes()
    said = accepted(capsys, "train", trained / "config.toml")
    assert_mentions(said, f"{STEPS} updates", "--training.steps")
    assert (trained / "config.toml").read_bytes() == before


def test_a_model_translates_each_text_and_keeps_empty_lines(trained: Path) -> None:
    translator = Translator.load(trained / "last")
    translator.max_tokens = 7
    texts = ["The king sleeps.", "", "  ", "They swim.", "\t", "My goose has found the big egg."]
    translations = translator.translate(texts)
    assert len(translations) == len(texts)
    assert all(isinstance(translation, str) for translation in translations)
    assert [translations[i] for i in (1, 2, 4)] == ["", "", ""]
    # Those beside it in the batch change nothing, nor does the order.
    assert [translator.translate([text])[0] for text in texts] == translations
    assert translator.translate(texts[::-1]) == translations[::-1]
    assert translator.translate([]) == []


def test_average_writes_the_mean_of_the_last_models(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mean"
    said = accepted(capsys, "average", trained, "--last", "2", "--out", out)
    assert_mentions(said, out)
    assert_mentions(said.replace(str(out), ""), 4, 5)
    assert len(said.splitlines()) == 1
    steps = [read_model(trained / "checkpoints" / f"step-{s:08d}" / "model")[0] for s in (4, 5)]
    for name, tensor in read_model(out)[0].items():
        mean = (steps[0][name].double() + steps[1][name].double()) / 2
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-7, atol=1e-9)
    for folder in (trained / "best", trained / "last", out):
        assert model_languages(folder) == ("en", "de")
    for folder in (trained / "best", trained / "last", out):
        card = (folder / "README.md").read_text()
        assert card.startswith("# A translation model: en to de\n")
        assert "## Training data\n\n- train.en and train.de: " in card
    translator = Translator.load(out)
    translator.max_tokens = 7
    assert len(translator.translate(["The king sleeps.", ""])) == 2


@pytest.mark.parametrize(
    ("last", "facts"),
    [("0", ("--last", 1, 0)), ("4", ("--last", 4, "3 checkpoints", "training.keep"))],
)
def test_average_of_too_few_or_too_many_is_refused(
    last: str,
    facts: tuple[object, ...],
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("average", trained, "--last", last, "--out", tmp_path / "mean")
    said = refused(capsys, USAGE, *arguments)
    assert_mentions(said.replace(str(trained), ""), *facts)
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("init", ["best", "link", "checkpoints/step-00000002/model", "../run/last"])
def test_a_run_that_would_start_from_its_own_model_is_refused_and_left(
    init: str, config: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied.with_name("link") if init == "link" else copied / init
    if init == "link":
        path.symlink_to(copied / "best")
    before = everything(copied)
    options = ("--out", copied, "--overwrite", "--init-from", path)
    said = refused(capsys, USAGE, "train", config, *options)
    assert_mentions(said, "init_from", copied, path, "--out")
    after = everything(copied)
    assert after == before


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--model.d-model", "65536", "--model.d-ff", "1000000", "--model.encoder-layers", "99")
    said = refused(capsys, USAGE, "train", config, "--out", tmp_path / "run", *sizes)
    assert_mentions(said, "GiB", "memory", "model.d_model")
    assert not (tmp_path / "run").exists()


def test_checkpoints_without_their_settings_are_kept(
    config: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "config.toml").unlink()
    before = everything(copied)
    said = refused(capsys, BAD_DATA, "train", config, "--out", copied)
    assert_mentions(said, copied, "config.toml", "--overwrite")
    assert everything(copied) == before


def test_overwriting_a_run_that_fails_to_begin_leaves_the_old_one(
    config: Path, copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied / "notes.txt").write_text("mine")
    before = everything(copied)
    module = importlib.import_module("edgewise.training.run")

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_text", full)
        refused(capsys, INPUT_OUTPUT, "train", config, "--out", copied, "--overwrite")
    assert everything(copied) == before
    accepted(capsys, "train", config, "--out", copied, "--overwrite", "--training.steps", "1")
    assert (copied / "notes.txt").read_text() == "mine"
    assert [path.name for path in (copied / "checkpoints").glob("step-*")] == ["step-00000001"]
    assert not [path for path in copied.glob(".*") if path.name != ".edgewise-lock"]


@pytest.mark.parametrize("out", ["last", "best", "mean", "checkpoints/step-00000002/model"])
def test_the_mean_is_not_written_into_the_run(
    out: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(copied)
    options = ("--last", "2", "--out", copied / out, "--overwrite")
    said = refused(capsys, USAGE, "average", copied, *options)
    assert_mentions(said, "--out", copied, copied / out)
    assert everything(copied) == before


def test_average_of_no_run_or_to_an_existing_folder_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, USAGE, "average", tmp_path, "--last", "1", "--out", f"{tmp_path}-mean")
    assert_mentions(said, tmp_path, "checkpoints", "run")
    (tmp_path / "notes").write_text("mine")
    said = refused(capsys, USAGE, "average", trained, "--last", "1", "--out", tmp_path)
    assert_mentions(said, tmp_path, "exists", "--overwrite")
    arguments = ("average", trained, "--last", "1", "--out", tmp_path, "--overwrite")
    assert_mentions(refused(capsys, USAGE, *arguments), tmp_path, "model", "--overwrite")
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("name", ["x[/b]", "[red]y"])
def test_the_name_of_a_folder_is_no_markup(
    name: str, config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = accepted(
        capsys, "train", config, "--out", tmp_path / name / "run", "--training.steps", "1"
    )
    assert str(tmp_path / name / "run") in said
    out = tmp_path / name / "mean"
    assert str(out) in accepted(capsys, "average", trained, "--last", "2", "--out", out)


def test_a_loss_that_is_not_finite_is_never_learnt_from(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "diverging"
    flags = ("--training.factor", "999999", "--training.warmup", "1", "--training.save-every", "1")
    flags += ("--training.steps", "30")
    said = refused(capsys, FAILURE, "train", config, "--out", out, *flags)
    for pattern in (
        r"\bupdate \d+\b",
        r"\bepoch \d+\b",
        r"\bbatch \d+\b.*\bloss\b|\b3 batches\b.*\bgradient\b|\bgradient\b.*\b3 batches\b",
        r"\b(nan|inf)\b",
    ):
        assert re.search(pattern, said), said
    assert_mentions(said, "training.factor", "training.warmup", "training.clip")
    tensors, _, _ = read_model(out / "last")
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_patience_without_validation_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "text"
    lines.write_text("one two three\n" * 50)
    corpus = tmp_path / "corpus"
    bitext = Bitext(TextFile(lines), TextFile(lines))
    vocabulary = Corpus(config.with_name("corpus")).vocabulary
    prepare(corpus, [bitext], vocab=vocabulary)
    where = ("--corpus", corpus, "--out", tmp_path / "run", "--training.patience", "3")
    said = refused(capsys, USAGE, "train", config, *where)
    assert_mentions(said, "training.patience", corpus, "--valid-source", "--valid-target")
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_copied_without_its_hidden_files_goes_on(
    config: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / ".edgewise-lock").unlink()
    said = accepted(capsys, "train", config, "--out", copied, "--training.steps", "6")
    assert_mentions(said, f"update {STEPS}")
    assert metrics(copied)[-1]["step"] == STEPS + 1


def test_a_copied_run_goes_on_and_not_the_original(
    trained: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "metrics.jsonl").read_bytes()
    accepted(capsys, "train", copied / "config.toml", "--training.steps", "6")
    assert metrics(copied)[-1]["step"] == 6
    assert (trained / "metrics.jsonl").read_bytes() == before


def test_a_run_goes_on_from_any_folder(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied.parent)
    accepted(capsys, "train", "run/config.toml", "--training.steps", "6")
    monkeypatch.chdir(copied)
    accepted(capsys, "train", "config.toml", "--training.steps", "7")
    assert metrics(copied)[-1]["step"] == 7


def test_a_file_cannot_ask_for_overwriting(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "again.toml"
    path.write_text("overwrite = true\n" + config.read_text())
    said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
    assert_mentions(said, path, "--overwrite")


def test_a_run_given_as_a_model_is_told_where_its_models_are(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--out", tmp_path / "run", "--init-from", trained)
    said = refused(capsys, USAGE, "train", config, *where)
    assert_mentions(said, f"{trained}/best", f"{trained}/last")


def test_one_string_is_not_translated_letter_by_letter(trained: Path) -> None:
    translator = Translator.load(trained / "last")
    with raises(ArgumentError, "texts", "string", "[text]"):
        translator.translate("a dog")
    assert translator.translate(iter(["a dog"])) == translator.translate(["a dog"])
