"""Model folders and checkpoints: what is written comes back, and damage is told by name."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from everything import everything
from messages import assert_mentions, raises
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edgewise.checkpoint import checkpoints as storing
from edgewise.checkpoint import model_folder as storing_model
from edgewise.checkpoint.average import average
from edgewise.checkpoint.checkpoints import Checkpoints
from edgewise.checkpoint.model_folder import (
    load_model,
    model_languages,
    read_model,
    weights,
    write_model,
)
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding.translator import folder_settings
from edgewise.errors import DataError, SettingError
from edgewise.model import transformer
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import MANIFEST, read_json, seal, write_json
from edgewise.storage.manifest import EDITABLE

SETTINGS = ModelSettings(
    **{"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 20},
    **{"max_distance": 2, "tables": "shared"},
)
FILES = (
    *("README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors"),
    "tokenizer/vocabulary.model",
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([line for pair in pairs(200, 1) for line in pair], 340)


@pytest.fixture(scope="module")
def other_vocabulary() -> Vocabulary:
    return Vocabulary.train([line for pair in pairs(200, 2) for line in pair], 340)


@pytest.fixture
def model(vocabulary: Vocabulary) -> Transformer:
    result = Transformer(SETTINGS, vocabulary.size)
    initialise(result, 4)
    return result.eval()


@pytest.fixture
def folder(model: Transformer, vocabulary: Vocabulary, tmp_path: Path) -> Path:
    write_model(tmp_path / "model", weights(model), SETTINGS, vocabulary, {"updates": 3})
    return tmp_path / "model"


def test_a_folder_says_its_languages_or_nothing(folder: Path) -> None:
    assert model_languages(folder) is None
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "languages": ["en", "de"]})
    assert model_languages(folder) == ("en", "de")
    for wrong in ("en", ["en"], ["en", 5], {"en": "de"}):
        write_json(folder / "config.json", {**config, "languages": wrong})
        with raises(DataError, folder / "config.json", "languages", repr(wrong)):
            model_languages(folder)


def truncated(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def without(path: Path, caught: pytest.ExceptionInfo[BaseException]) -> str:
    """The message without the path, in which there may be any number."""
    return str(caught.value).replace(str(path), "")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "truncated": truncated,
    "flipped": flipped,
}


# Model folders.


def test_a_model_comes_back_with_the_same_logits(
    model: Transformer, vocabulary: Vocabulary, folder: Path
) -> None:
    again, its_vocabulary = load_model(folder)
    assert again.settings == SETTINGS
    assert its_vocabulary.model == vocabulary.model
    assert not again.training
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, vocabulary.size, (3, 7), generator=generator)
    target = torch.randint(4, vocabulary.size, (3, 5), generator=generator)
    assert torch.equal(again(source, None, target), model(source, None, target))


def test_a_model_folder_has_these_files_and_no_other(folder: Path) -> None:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == set(FILES)


def test_the_card_tells_what_the_model_is(
    model: Transformer, vocabulary: Vocabulary, folder: Path
) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert f"| parameters | {parameters:,} |" in card
    assert f"| vocabulary | {vocabulary.size:,} pieces" in card
    assert "| layers | 1 + 2, width 12, 3 heads |" in card
    assert "relative positions up to distance 2" in card
    assert "| updates | 3 |" in card


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [name for name in FILES if name not in EDITABLE])
def test_damage_to_any_file_is_told_by_its_name(name: str, damage: str, folder: Path) -> None:
    DAMAGES[damage](folder / name)
    with pytest.raises(DataError) as caught:
        load_model(folder)
    assert str(folder) in str(caught.value)
    if (name, damage) != (MANIFEST, "flipped"):  # it may accuse the file that it no longer matches
        assert name in str(caught.value)


def test_another_vocabulary_than_the_model_s_is_refused(
    other_vocabulary: Vocabulary, folder: Path
) -> None:
    (folder / "tokenizer" / "vocabulary.model").write_bytes(other_vocabulary.model)
    (folder / MANIFEST).unlink()
    seal(folder, "model", 1)
    with raises(DataError, folder, "vocabulary"):
        load_model(folder)


@pytest.mark.parametrize("change", ["shape", "missing", "unknown"])
def test_weights_that_are_not_the_model_s_are_refused_by_name(
    change: str, model: Transformer, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    tensors = weights(model)
    name = "decoder.1.feed_forward.inner.weight"
    facts: tuple[str, ...]
    if change == "shape":
        tensors[name] = tensors[name][:19].clone()
        facts = (name, "[19, 12]", "[20, 12]")
    elif change == "missing":
        del tensors[name]
        facts = (name, "missing", "[20, 12]")
    else:
        tensors["decoder.1.weight"] = torch.zeros(2, 3)
        facts = ("decoder.1.weight", "[2, 3]", "missing")
    write_model(tmp_path / "model", tensors, SETTINGS, vocabulary, {})
    with raises(DataError, *facts):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.float64])
def test_weights_of_another_type_are_refused(
    dtype: torch.dtype, model: Transformer, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    tensors = weights(model)
    name = "decoder.1.feed_forward.inner.weight"
    # The same bits, as far as the type has as many: as a damaged header would have it.
    same_size = dtype == torch.int32
    tensors[name] = tensors[name].view(dtype) if same_size else tensors[name].to(dtype)
    write_model(tmp_path / "model", tensors, SETTINGS, vocabulary, {})
    with raises(DataError, tmp_path / "model" / "model.safetensors", name, "F32"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("encoder_layers", 10**9), ("decoder_layers", 999), ("d_model", 10**9), ("d_ff", 10**12)),
        *(("max_distance", 10**9), ("d_model", 60000), ("d_ff", 10**6), ("max_distance", 10**6)),
        *(("heads", 10**9), ("norm_epsilon", 1e400)),
    ],
)
def test_settings_are_compared_with_the_weights_before_anything_is_built(
    setting: str, value: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_config(folder, lambda config: config["architecture"].update({setting: value}))

    layer = transformer.EncoderLayer

    def without_memory(settings: ModelSettings) -> nn.Module:
        assert torch.get_default_device().type == "meta"
        return layer(settings)

    monkeypatch.setattr(transformer, "EncoderLayer", without_memory)
    with raises(DataError, folder) as caught:
        load_model(folder)
    assert "pydantic" not in str(caught.value) and len(str(caught.value)) < 1000


CONFIGS: list[Any] = [None, [], 5, {}, {"vocabulary": 3}, {"architecture": 7, "vocabulary": {}}]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_configuration_of_another_form_is_refused(folder: Path, config: Any) -> None:
    write_json(folder / "config.json", config)
    (folder / MANIFEST).unlink()
    seal(folder, "model", 1)
    with raises(DataError, folder / "config.json") as caught:
        load_model(folder)
    assert "NoneType" not in str(caught.value) and "subscriptable" not in str(caught.value)


def change_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change config.json, and make the manifest agree with it."""
    config = read_json(folder / "config.json")
    change(config)
    write_json(folder / "config.json", config)
    (folder / MANIFEST).unlink()
    seal(folder, "model", 1)


def test_a_number_with_too_many_digits_is_refused(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"heads": 3', f'"heads": {"3" * 5000}'))
    (folder / MANIFEST).unlink()
    seal(folder, "model", 1)
    with raises(DataError, path, "digits") as caught:
        load_model(folder)
    assert "sys." not in str(caught.value)


def test_generation_settings_that_are_not_listed_are_not_read(folder: Path) -> None:
    manifest = read_json(folder / MANIFEST)
    del manifest["files"]["generation_config.json"]
    write_json(folder / MANIFEST, manifest)
    with raises(DataError, folder, MANIFEST, "generation_config.json"):
        folder_settings(folder)


def test_weights_can_be_read_by_whoever_can_read_the_folder(folder: Path) -> None:
    modes = {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    assert modes == {folder.stat().st_mode & 0o666}


def test_a_manifest_that_lists_no_files_does_not_load(folder: Path) -> None:
    write_json(folder / MANIFEST, {"kind": "model", "version": 1, "files": {}})
    with raises(DataError, folder, MANIFEST, "config.json"):
        load_model(folder)


def test_weights_that_are_replaced_while_they_are_read_are_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = storing_model.load_tensors

    def replaced(path: Path) -> dict[str, Tensor]:
        found = load(path)
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        return found

    monkeypatch.setattr(storing_model, "load_tensors", replaced)
    with raises(DataError, folder / "model.safetensors", "changed"):
        load_model(folder)


def test_a_model_folder_may_have_a_subfolder_called_last(folder: Path) -> None:
    (folder / "last").mkdir()
    load_model(folder)


@pytest.mark.parametrize("name", sorted(EDITABLE))
def test_editing_the_card_or_the_generation_settings_is_no_damage(folder: Path, name: str) -> None:
    (folder / name).write_text((folder / name).read_text() + "\n \n")
    load_model(folder)


def test_a_folder_that_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with raises(DataError, tmp_path, "model", MANIFEST):
        load_model(tmp_path)
    with raises(SettingError, tmp_path / "nowhere", "model"):
        load_model(tmp_path / "nowhere")
    seal(tmp_path, "corpus", 1)
    with raises(DataError, tmp_path, "model", "corpus"):
        load_model(tmp_path)
    (folder / MANIFEST).unlink()
    seal(folder, "model", 2)
    with raises(DataError, folder) as caught:
        load_model(folder)
    assert_mentions(without(folder, caught), "version", "model", 1, 2)


def test_settings_that_no_model_can_have_are_refused(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    assert '"heads": 3' in config
    (folder / "config.json").write_text(config.replace('"heads": 3', '"heads": 5'))
    (folder / MANIFEST).unlink()
    seal(folder, "model", 1)
    with raises(DataError, folder) as caught:
        load_model(folder)
    ours, _, _ = without(folder, caught).partition("[type=")  # pydantic adds all that was given
    assert_mentions(ours, "d_model", 12, "heads", 5)


# Checkpoints.


class Run:
    """The checkpoints of a run, with weights that differ from step to step."""

    def __init__(self, path: Path, model: Transformer, vocabulary: Vocabulary) -> None:
        self.path, self.vocabulary = path, vocabulary
        self.names = {name: p.shape for name, p in model.named_parameters()}
        self.checkpoints = Checkpoints(path, SETTINGS, vocabulary)
        self.warnings: list[str] = []

    def weights(self, step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(step)
        return {name: torch.randn(shape, generator=generator) for name, shape in self.names.items()}

    def moments(self, step: int) -> dict[str, Tensor]:
        return {f"exp_avg/{name}": -tensor for name, tensor in self.weights(step).items()}

    def save(self, *steps: int, keep: int = 9) -> None:
        for step in steps:
            progress = {"step": step, "best_loss": step / 7, "position": {"epoch": 1, "index": 2}}
            self.checkpoints.save(step, self.weights(step), self.moments(step), progress, keep=keep)

    def load(self) -> storing.Saved | None:
        return self.checkpoints.load_last(self.warnings.append)

    def step(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:08d}"

    def names_of(self, pattern: str) -> list[str]:
        return sorted(path.name for path in (self.path / "checkpoints").glob(pattern))


@pytest.fixture
def run(model: Transformer, vocabulary: Vocabulary, tmp_path: Path) -> Run:
    (tmp_path / "run").mkdir()
    return Run(tmp_path / "run", model, vocabulary)


def test_what_was_saved_comes_back(run: Run) -> None:
    assert run.load() is None
    run.save(3, 12)
    saved = run.load()
    assert saved is not None
    assert saved.step == 12
    assert saved.progress == {
        **{"step": 12, "best_loss": 12 / 7, "position": {"epoch": 1, "index": 2}}
    }
    for actual, expected in (
        (saved.weights, run.weights(12)),
        (saved.optimizer, run.moments(12)),
    ):
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
    assert run.warnings == []


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_the_newest_checkpoints_are_kept_and_two_of_them_with_their_state(
    keep: int, run: Run
) -> None:
    run.save(2, 4, 6, 8, keep=keep)
    kept = [8, 6, 4, 2][:keep]
    assert run.checkpoints.steps() == kept[::-1]
    assert [step for step in kept if (run.step(step) / "state").exists()] == kept[:2]
    for step in kept:
        read_model(run.step(step) / "model")
    assert run.names_of(".*") == []


def test_a_checkpoint_in_between_goes_with_the_next(run: Run, tmp_path: Path) -> None:
    def in_between(step: int) -> None:
        progress = {"step": step, "best_loss": None, "position": {"epoch": 1, "index": 2}}
        arguments = (step, run.weights(step), run.moments(step), progress)
        run.checkpoints.save(*arguments, keep=3, in_between=True)

    run.save(2, 4, 6, keep=3)
    in_between(7)
    assert run.checkpoints.steps() == [2, 4, 6, 7]  # none of the others goes for it
    saved = run.load()
    assert saved is not None
    assert saved.progress == {"step": 7, "best_loss": None, "position": {"epoch": 1, "index": 2}}
    assert (run.path / "last").resolve() == run.step(7) / "model"
    in_between(7)  # stopped again before the next update
    assert run.checkpoints.steps() == [2, 4, 6, 7]
    run.save(8, keep=3)
    assert run.checkpoints.steps() == [4, 6, 8]
    states = [step for step in run.checkpoints.steps() if (run.step(step) / "state").exists()]
    assert states == [6, 8]  # as if the run had not been stopped
    assert average(run.path, 3, tmp_path / "mean") == [4, 6, 8]


def test_last_is_a_link_to_the_newest_model_that_may_move_with_the_run(
    run: Run, tmp_path: Path
) -> None:
    run.save(2)
    assert (run.path / "last").resolve() == run.step(2) / "model"
    run.save(4)
    assert (run.path / "last").resolve() == run.step(4) / "model"
    run.path.rename(tmp_path / "moved")
    tensors, _, _ = read_model(tmp_path / "moved" / "last")
    assert torch.equal(tensors["embedding.weight"], run.weights(4)["embedding.weight"])


def test_best_is_a_link_to_one_model_alone(run: Run) -> None:
    run.checkpoints.save_best(2, run.weights(2), 1.5)
    run.save(3)
    run.checkpoints.save_best(5, run.weights(5), 1.25)
    assert run.names_of("best-*") == ["best-00000005"]
    tensors, _, _ = read_model(run.path / "best")
    assert torch.equal(tensors["embedding.weight"], run.weights(5)["embedding.weight"])
    assert "| validation loss per token | 1.2500 |" in (run.path / "best/README.md").read_text()
    saved = run.load()
    assert saved is not None and saved.step == 3


def test_a_step_that_is_saved_again_is_replaced(run: Run) -> None:
    run.save(2)
    other = {name: tensor + 1 for name, tensor in run.weights(2).items()}
    run.checkpoints.save(2, other, run.moments(2), {"step": 2}, keep=3)
    run.checkpoints.save_best(2, run.weights(2), 1.5)
    run.checkpoints.save_best(2, other, 1.5)
    for folder in (run.step(2) / "model", run.path / "best"):
        tensors, _, _ = read_model(folder)
        assert torch.equal(tensors["embedding.weight"], other["embedding.weight"])


def without_folder(path: Path) -> None:
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("damaged", "damage"),
    [
        ("state/optimizer.safetensors", truncated),
        ("state/optimizer.safetensors", Path.unlink),
        ("state/progress.json", flipped),
        ("state/manifest.json", truncated),
        ("state/manifest.json", Path.unlink),
        ("model/model.safetensors", flipped),
        ("model/tokenizer/vocabulary.model", Path.unlink),
        ("model/manifest.json", Path.unlink),
        ("model", without_folder),
    ],
)
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_taken(
    damaged: str, damage: Callable[[Path], None], run: Run
) -> None:
    run.save(2, 4, 6)
    damage(run.step(6) / damaged)
    saved = run.load()
    assert saved is not None and saved.step == 4
    (warning,) = run.warnings
    assert_mentions(warning, run.step(6), "checkpoint")


def test_damaged_checkpoints_only_are_an_error(run: Run) -> None:
    run.save(2, 4, 6)
    for step in (4, 6):
        truncated(run.step(step) / "state" / "progress.json")
    with raises(DataError, run.path / "checkpoints", "damaged", "--overwrite", "--init-from"):
        run.load()
    assert len(run.warnings) == 2


def test_what_was_just_saved_stays_though_a_damaged_one_is_newer(run: Run) -> None:
    run.save(2, 7)
    truncated(run.step(7) / "state" / "progress.json")
    saved = run.load()
    assert saved is not None and saved.step == 2
    run.save(4, keep=1)
    assert (run.path / "last").resolve() == run.step(4) / "model"
    again = run.load()
    assert again is not None and again.step == 4


LEFT = {
    "a checkpoint that was being written": "with new_folder(step): die()",
    "a checkpoint that is written again": "with new_folder(other): die()",
    "a checkpoint that was being removed": "shutil.rmtree = die; remove(other)",
    "a state that was being removed": "shutil.rmtree = die; remove(other / 'state')",
}


@pytest.mark.parametrize("left", LEFT)
def test_what_a_killed_process_left_is_ignored_and_removed(
    left: str, run: Run, tmp_path: Path
) -> None:
    run.save(2, 4)
    code = f"""
import os, shutil, signal
from pathlib import Path
from edgewise.storage import new_folder, remove
def die(*arguments, **options): os.kill(os.getpid(), signal.SIGKILL)
step, other = Path({str(run.step(5))!r}), Path({str(run.step(2))!r})
{LEFT[left]}
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert run.checkpoints.steps() in ([2, 4], [4])
    saved = run.load()
    assert saved is not None and saved.step == 4
    assert average(run.path, 1, tmp_path / "mean") == [4]
    mine = run.path / "checkpoints" / ".step-00000004.old-backup"
    shutil.copytree(run.step(4), mine)
    Checkpoints(run.path, SETTINGS, run.vocabulary)  # of the next process
    hidden = [path.name for path in (run.path / "checkpoints").rglob(".*")]
    assert hidden == [mine.name]


def test_the_mean_is_not_written_into_the_run(run: Run) -> None:
    run.save(2, 4)
    before = everything(run.path)
    for out in ("last", "mean", "checkpoints/step-00000002/model", "../run/last"):
        with raises(SettingError, "--out", run.path, run.path / out):
            average(run.path, 1, run.path / out, overwrite=True)
    assert everything(run.path) == before


def test_a_folder_of_another_name_is_no_checkpoint(run: Run) -> None:
    run.save(2)
    shutil.copytree(run.step(2), run.step(2).with_name("step-00000002.backup"))
    assert run.checkpoints.steps() == [2]
    saved = run.load()
    assert saved is not None and saved.step == 2


def test_an_error_while_saving_leaves_the_checkpoints_as_they_were(run: Run) -> None:
    run.save(2)
    bad: dict[str, Any] = {"embedding.weight": "no tensor"}
    with pytest.raises(Exception, match="str"):
        run.checkpoints.save(4, bad, run.moments(4), {}, keep=1)
    assert run.names_of("*") == ["step-00000002"]
    assert (run.path / "last").resolve() == run.step(2) / "model"


# The mean of models.


def test_average_is_the_mean_of_the_last_models(run: Run, tmp_path: Path) -> None:
    run.save(2, 4, 6, 8)
    assert average(run.path, 3, tmp_path / "mean") == [4, 6, 8]
    tensors, settings, vocabulary = read_model(tmp_path / "mean")
    assert settings == SETTINGS
    assert vocabulary.digest == run.vocabulary.digest
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        mean = torch.stack([run.weights(step)[name].double() for step in (4, 6, 8)]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-7, atol=1e-9)
    load_model(tmp_path / "mean")
    assert "| mean of the updates | 4, 6, 8 |" in (tmp_path / "mean" / "README.md").read_text()


def test_average_of_one_is_that_one(run: Run, tmp_path: Path) -> None:
    run.save(2, 4)
    assert average(run.path, 1, tmp_path / "mean") == [4]
    actual = load_file(tmp_path / "mean" / "model.safetensors")
    assert all(torch.equal(actual[name], tensor) for name, tensor in run.weights(4).items())


def test_average_refuses_what_it_cannot_do(run: Run, tmp_path: Path) -> None:
    with raises(SettingError, run.path, "checkpoints"):
        average(run.path, 1, tmp_path / "mean")
    run.save(2, 4)
    with raises(SettingError, run.path, "training.keep") as caught:
        average(run.path, 3, tmp_path / "mean")
    assert_mentions(without(run.path, caught), "--last", 3, 2)
    assert not (tmp_path / "mean").exists()
    (tmp_path / "mean").mkdir()
    (tmp_path / "mean" / "notes").write_text("mine")
    with raises(SettingError, tmp_path / "mean", "--overwrite"):
        average(run.path, 2, tmp_path / "mean")
    with raises(SettingError, tmp_path / "mean", "model", "--overwrite", "--out"):
        average(run.path, 2, tmp_path / "mean", overwrite=True)
    assert (tmp_path / "mean" / "notes").read_text() == "mine"


def test_average_replaces_a_model_if_it_may(run: Run, tmp_path: Path) -> None:
    run.save(2, 4)
    average(run.path, 2, tmp_path / "mean")
    with raises(SettingError, tmp_path / "mean", "--overwrite"):
        average(run.path, 1, tmp_path / "mean")
    assert average(run.path, 1, tmp_path / "mean", overwrite=True) == [4]


def test_average_refuses_a_damaged_model_by_name(run: Run, tmp_path: Path) -> None:
    run.save(2, 4)
    flipped(run.step(2) / "model" / "model.safetensors")
    with raises(DataError, run.step(2) / "model", "damaged", "model.safetensors"):
        average(run.path, 2, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_average_refuses_models_that_differ(
    run: Run, other_vocabulary: Vocabulary, tmp_path: Path
) -> None:
    run.save(2)
    Checkpoints(run.path, SETTINGS, other_vocabulary).save(
        4, run.weights(4), run.moments(4), {}, keep=3
    )
    with raises(DataError, run.step(4) / "model", run.step(2) / "model"):
        average(run.path, 2, tmp_path / "mean")


def test_a_weight_that_is_not_contiguous_is_saved_as_it_reads(
    model: Transformer, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    weight = model.encoder[0].attention.query.weight
    weight.data = weight.data.T
    write_model(tmp_path / "model", weights(model), SETTINGS, vocabulary, {})
    again, _ = load_model(tmp_path / "model")
    assert torch.equal(again.encoder[0].attention.query.weight, weight)
    save_file({"x": torch.zeros(1)}, tmp_path / "model" / "model.safetensors")
    with raises(DataError, tmp_path / "model", "model.safetensors"):
        load_model(tmp_path / "model")
