"""`edgewise train` and `edgewise average`: what they do, and what they say to bad input."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Started, make_corpus, metrics, result, write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from edgewise import __version__
from edgewise.checkpoint.model_folder import model_languages, read_model
from edgewise.cli.main import BAD_DATA, FAILURE, USAGE, run
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
    assert "model.dropuot" in said
    assert str(path) in said
    assert "Did you mean --model.dropout?" in said
    assert not (tmp_path / "run").exists()


def test_a_misspelled_section_in_the_file_is_told_the_nearest_name(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(config, tmp_path, "[model]", "[modle]")
    said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
    assert "modle.encoder_layers" in said
    assert "Did you mean --model.encoder-layers?" in said


def test_a_misspelled_flag_is_told_the_nearest_name(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", config, "--out", tmp_path / "run", "--model.dropuot", "0.1")
    said = refused(capsys, USAGE, *arguments)
    assert said == "Unknown option: --model.dropuot. Did you mean --model.dropout?"


def test_a_misspelled_variable_is_told_the_nearest_name(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGEWISE_MODEL_DROPUOT", "0.1")
    said = refused(capsys, USAGE, "train", config, "--out", tmp_path / "run")
    assert said == (
        "the environment variable EDGEWISE_MODEL_DROPUOT names no setting; "
        "did you mean EDGEWISE_MODEL_DROPOUT?"
    )


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--model.dropout", "1.5", "model.dropout must be less than 1; got '1.5'"),
        ("--model.dropout", "much", "model.dropout must be a valid number"),
        ("--model.encoder-layers", "0", "model.encoder_layers must be greater than or equal to 1"),
        ("--model.norm", "middle", "model.norm must be 'post' or 'pre'; got 'middle'"),
        ("--model.d-model", "15", "model.d_model must be a multiple of 2; got '15'"),
        ("--model.heads", "3", "d_model must be a multiple of heads; got d_model=16, heads=3"),
        ("--training.steps", "0", "training.steps must be greater than or equal to 1; got '0'"),
        ("--training.steps", "many", "training.steps must be a valid integer"),
        ("--training.clip", "-1", "training.clip must be greater than 0; got '-1'"),
        ("--training.factor", "nan", "training.factor must be"),
        ("--training.factor", "inf", "training.factor must be less than 1000000; got 'inf'"),
    ],
)
def test_a_value_out_of_range_is_named(
    flag: str,
    value: str,
    said: str,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("train", config, "--out", tmp_path / "run", flag, value)
    assert said in refused(capsys, USAGE, *arguments)
    assert not (tmp_path / "run").exists()


def test_values_of_the_file_are_checked_as_those_of_flags_are(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(config, tmp_path, "d_ff = 32", "d_ff = 0")
    said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
    assert "model.d_ff must be greater than or equal to 1" in said


def test_all_mistakes_are_told_at_once(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(config, tmp_path, "d_ff = 32", "d_ff = 0")
    arguments = ("train", path, "--out", tmp_path / "run", "--training.keep", "0")
    said = refused(capsys, USAGE, *arguments)
    assert [line.split()[0] for line in said.splitlines()] == ["model.d_ff", "training.keep"]


def test_a_missing_configuration_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path / "nowhere.toml", tmp_path):
        said = refused(capsys, USAGE, "train", path, "--out", tmp_path / "run")
        assert said == f"there is no configuration file {path} (configs/ has some)"
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
    assert said == "out must be set, in the file or as --out"
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    said = refused(capsys, USAGE, "train", empty, "--out", tmp_path / "run")
    assert said == "corpus must be set, in the file or as --corpus"


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
        assert said == f"there is no folder {missing}; expected an edgewise corpus"
    said = refused(capsys, BAD_DATA, *arguments, tmp_path)
    assert said == f"{tmp_path} is not an edgewise corpus: it has no manifest.json"
    model = (trained / "last").resolve()
    said = refused(capsys, BAD_DATA, *arguments, model)
    assert said == f"{model} must be an edgewise corpus; it is an edgewise model"
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
    assert said == f"{corpus} is damaged: the content of train/tokens.bin is not what was written"


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_folder_of_something_else_is_left_alone(
    overwrite: list[str], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
    arguments = ("train", config, "--out", tmp_path / "photos", *overwrite)
    said = refused(capsys, USAGE, *arguments)
    assert said.startswith(f"{tmp_path / 'photos'} exists and is not a training run")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]], ids=["", "overwrite"])
def test_a_folder_of_another_program_with_a_config_toml_is_left_alone(
    overwrite: list[str], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site" / "best").mkdir(parents=True)
    (tmp_path / "site" / "config.toml").write_text("title = 'mine'")
    said = refused(capsys, USAGE, "train", config, "--out", tmp_path / "site", *overwrite)
    assert said.startswith(f"{tmp_path / 'site'} exists and is not a training run")
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["best", "config.toml"]


@pytest.mark.parametrize(
    "left",
    [[".edgewise-lock"], [".edgewise-lock", "run.json"], [".edgewise-lock", ".run.json.new-7"]],
)
def test_a_folder_that_a_kill_left_before_its_configuration_was_written_is_begun(
    left: list[str], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).write_text("{}")
    accepted(capsys, "train", config, "--out", tmp_path / "run", "--training.steps", "1")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--training.batch-tokens", "5"], "batch_tokens must be at least"),
        (["--training.device", "nonsense"], "training.device must be auto, cpu"),
        (["--training.device", "cuda:77"], "training.device must be auto, cpu"),
        (["--training.device", "meta"], "training.device must be auto, cpu"),
        (["--training.mixed-precision"], "training.mixed_precision is for GPUs"),
    ],
    ids=["batch_tokens", "no device", "no such GPU", "meta", "mixed precision"],
)
class TestASettingThatDoesNotFit:
    """What only the corpus or the machine can tell is told before anything is written."""

    def test_is_named(
        self,
        flags: list[str],
        said: str,
        config: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        arguments = ("train", config, "--out", tmp_path / "run", *flags)
        assert refused(capsys, USAGE, *arguments).startswith(said)

    def test_can_be_corrected(
        self,
        flags: list[str],
        said: str,
        config: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        refused(capsys, USAGE, "train", config, "--out", tmp_path / "run", *flags)
        accepted(capsys, "train", config, "--out", tmp_path / "run", "--training.steps", "1")

    def test_does_not_cost_the_run_that_was_to_be_overwritten(
        self,
        flags: list[str],
        said: str,
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
    assert f"batch_tokens must be at least {longest}" in said
    assert f"got {longest - 1}" in said
    enough = (*arguments[:3], tmp_path / "enough", arguments[4], str(longest))
    accepted(capsys, *enough, "--training.steps", "1")


# Continuing.


def test_settings_that_the_weights_depend_on_cannot_change(
    config: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = result(copied, STEPS), (copied / "config.toml").read_bytes()
    arguments = ("train", config, "--out", copied, "--training.steps", "7")
    said = refused(capsys, USAGE, *arguments, "--model.dropout", "0.25", "--training.seed", "4")
    assert said.startswith(f"the run in {copied} was begun with other settings: ")
    assert "model.dropout was 0.2, is 0.25; training.seed was 1, is 4 " in said
    assert "training.steps" not in said
    assert (result(copied, STEPS), (copied / "config.toml").read_bytes()) == before


def test_a_corpus_that_changed_is_refused(
    config: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocabulary = Corpus(config.with_name("corpus")).vocabulary
    other = make_corpus(tmp_path / "other", seed=8, vocab=vocabulary)
    said = refused(capsys, BAD_DATA, "train", config, "--out", copied, "--corpus", other)
    assert said.startswith(f"{other} is not the corpus that the run in {copied} began with")


def test_the_same_corpus_may_lie_elsewhere(
    config: Path, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Path(shutil.copytree(config.with_name("corpus"), tmp_path / "moved"))
    said = accepted(capsys, "train", config, "--out", copied, "--corpus", moved)
    assert f"done after {STEPS} updates" in said


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
    assert said.startswith(f"the vocabulary of {other_vocabulary} is not the one of the model in")
    model = trained / "last"
    said = refused(capsys, BAD_DATA, *arguments, tmp_path / "new", "--init-from", model)
    assert said == (
        f"the vocabulary of {other_vocabulary} is not the one of the model in {model} "
        f"(prepare the corpus with --vocab {model})"
    )


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_leads_to_the_same_end(
    config: Path, trained: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = copied / "checkpoints" / f"step-{STEPS:08d}"
    damaged = newest / "state" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    said = accepted(capsys, "train", config, "--out", copied)
    assert f"warning: {newest / 'state'} is damaged: optimizer.safetensors has" in said
    assert "going back to the checkpoint before it" in said
    assert "going on after update 4" in said
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
    assert "every checkpoint" in said
    assert "--overwrite" in said


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
        assert said.startswith(f"another process is training in {out}: wait for it")
        said = refused(capsys, USAGE, *arguments, "--overwrite")
        assert said.startswith(f"another process is training in {out}: wait for it")
        assert first.code(timeout=0) is None
    finally:
        first.kill()
    accepted(capsys, *arguments[:-1], "1")


def test_overwrite_starts_afresh(
    config: Path, trained: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("train", config, "--out", copied, "--training.seed", "6", "--training.steps", "1")
    said = accepted(capsys, *arguments, "--overwrite")
    assert "from the start" in said
    assert [record["step"] for record in metrics(copied)] == [1]
    assert metrics(copied)[0]["loss"] != metrics(trained)[0]["loss"]
    assert [path.name for path in (copied / "checkpoints").iterdir()] == ["step-00000001"]
    assert not (copied / "best").is_symlink()
    assert len(json.loads((copied / "run.json").read_bytes())["starts"]) == 1


def test_init_from_starts_from_the_weights_of_a_model(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A learning rate so small that the weights stay what they were.
    arguments = ("--out", tmp_path / "run", "--training.factor", "1e-30", "--training.steps", "1")
    said = accepted(capsys, "train", config, "--init-from", trained / "last", *arguments)
    assert "from the start" in said
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
    assert "decoder.0.feed_forward.inner.bias is [32] there and [48] in the model" in said
    arguments = ("--out", tmp_path / "another", "--init-from", tmp_path)
    said = refused(capsys, BAD_DATA, "train", config, *arguments)
    assert said == f"{tmp_path} is not an edgewise model: it has no manifest.json"


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
    assert "no lower validation loss after 3 updates" in said
    losses = [r["loss"] for r in metrics(tmp_path / "run") if r["kind"] == "validation"]
    assert len(losses) == 3 and len(set(losses)) == 1
    assert (tmp_path / "run" / "best").resolve().name == "best-00000001"
    assert "no lower validation loss after 3 updates" in accepted(capsys, *arguments, "2")
    assert "no lower validation loss after 4 updates" in accepted(capsys, *arguments, "3")
    assert "done after 9 updates" in accepted(capsys, *arguments, "none")


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
    assert start["torch"] == torch.__version__
    assert start["threads"] == 1
    assert {"python", "numpy", "sentencepiece", "safetensors", "time"} <= start.keys()


def test_the_configuration_of_a_run_is_one_that_continues_it(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "config.toml").read_bytes()
    assert f"done after {STEPS} updates" in accepted(capsys, "train", trained / "config.toml")
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
    assert said == f"{out}: the mean of the weights after 4, 5 updates\n"
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
    ("last", "said"),
    [("0", "--last must be 1 or more; got 0"), ("4", "--last 4 is more than the 3 checkpoints in")],
)
def test_average_of_too_few_or_too_many_is_refused(
    last: str, said: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("average", trained, "--last", last, "--out", tmp_path / "mean")
    assert refused(capsys, USAGE, *arguments).startswith(said)
    assert not (tmp_path / "mean").exists()


def test_average_of_no_run_or_to_an_existing_folder_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, USAGE, "average", tmp_path, "--last", "1", "--out", tmp_path / "mean")
    assert said == f"{tmp_path} has no checkpoints: it must be the folder of a training run"
    (tmp_path / "notes").write_text("mine")
    said = refused(capsys, USAGE, "average", trained, "--last", "1", "--out", tmp_path)
    assert said == f"{tmp_path} exists already (--overwrite replaces it)"
    arguments = ("average", trained, "--last", "1", "--out", tmp_path, "--overwrite")
    assert "is not an edgewise model" in refused(capsys, USAGE, *arguments)
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
    loss = r"batch \d+ of epoch \d+ \(pairs [\d, …]+ of the corpus\) has a loss"
    gradient = r"the gradient of the 3 batches from \d+ of epoch \d+ has a length"
    assert re.search(rf"update \d+ is not made: ({loss}|{gradient}) of", said), said
    assert "training.clip may help" in said
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
    assert said.startswith("training.patience needs validation")
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_copied_without_its_hidden_files_goes_on(
    config: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / ".edgewise-lock").unlink()
    said = accepted(capsys, "train", config, "--out", copied, "--training.steps", "6")
    assert f"going on after update {STEPS}" in said


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
    assert said == f"{path} sets overwrite, which can be given as --overwrite only"


def test_a_run_given_as_a_model_is_told_where_its_models_are(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--out", tmp_path / "run", "--init-from", trained)
    said = refused(capsys, USAGE, "train", config, *where)
    assert said == f"{trained} is a training run; its models are {trained}/best and {trained}/last"


def test_one_string_is_not_translated_letter_by_letter(trained: Path) -> None:
    translator = Translator.load(trained / "last")
    with pytest.raises(ArgumentError, match=r"got one string: give \[text\]"):
        translator.translate("a dog")
    assert translator.translate(iter(["a dog"])) == translator.translate(["a dog"])
