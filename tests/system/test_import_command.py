"""`edgewise import`: what it writes, what it says, what it exits with."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import (
    ENGLISH,
    hostile,
    marian_folder,
    opennmt_checkpoint,
    pieces_of,
    spm,
)
from messages import assert_mentions
from safetensors.torch import save_file
from tiny_model import Command, Process

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def run(tmp_path: Path) -> Command:
    (tmp_path / "streams").mkdir()
    return Command(tmp_path / "streams")


@pytest.fixture
def opennmt(tmp_path: Path) -> list[str | Path]:
    """What imports a checkpoint."""
    model = spm("both", 400)
    pieces = pieces_of(model)
    (tmp_path / "spm.model").write_bytes(model)
    torch.save(opennmt_checkpoint(pieces, pieces), tmp_path / "model.pt")
    return ["import", "opennmt", tmp_path / "model.pt", "--tokenizer", tmp_path / "spm.model"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marian")
    marian_folder(folder)
    return folder / "model"


@pytest.fixture
def marian(folder: Path, tmp_path: Path) -> list[str | Path]:
    """What imports a MarianMT folder, of links to one."""
    (tmp_path / "marian").mkdir()
    for file in folder.iterdir():
        (tmp_path / "marian" / file.name).symlink_to(file)
    return ["import", "marian", tmp_path / "marian"]


@pytest.fixture(params=["opennmt", "marian"])
def command(request: pytest.FixtureRequest) -> list[str | Path]:
    result: list[str | Path] = request.getfixturevalue(request.param)
    return result


def test_an_imported_model_translates(
    command: list[str | Path], run: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run(*command, "--out", out)
    assert done.code == 0 and done.out == b""
    assert_mentions(done.said, out)
    assert re.search(r"\b0\.\d MB\b", done.said)
    texts = "\n".join(ENGLISH[:3]) + "\n"
    translated = run("translate", "--model", out, "--max-length", "9", stdin=texts)
    assert translated.code == 0
    assert len(translated.lines) == 3


@pytest.mark.parametrize("replace", ["--overwrite", "--force"])
def test_an_existing_folder_exits_with_2_unless_it_may_be_replaced(
    replace: str, command: list[str | Path], run: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run(*command, "--out", out).code == 0
    again = run(*command, "--out", out)
    assert again.code == 2
    assert_mentions(again.said, out, "--overwrite")
    assert run(*command, "--out", out, replace).code == 0


@pytest.mark.parametrize(
    ("where", "way", "function"),
    [("opt", "os.system", "posix.system"), ("everything", "eval", "eval")],
)
def test_a_hostile_checkpoint_exits_with_65_and_nothing_of_it_is_run(
    where: str, way: str, function: str, opennmt: list[str | Path], tmp_path: Path
) -> None:
    file, marker = tmp_path / "model.pt", tmp_path / "marker"
    stored: Any = torch.load(file, weights_only=False)
    if where == "everything":
        stored = hostile(way, marker)
    else:
        stored[where] = hostile(way, marker)
    torch.save(stored, file)
    with Process(*opennmt, "--out", tmp_path / "out") as process:
        done = process.result()
    assert done.code == 65
    assert_mentions(done.said, file, function)
    assert not marker.exists() and not (tmp_path / "out").exists()


def test_hostile_weights_exit_with_65_and_nothing_of_them_is_run(
    marian: list[str | Path], tmp_path: Path
) -> None:
    (tmp_path / "marian" / "model.safetensors").unlink()
    weights, marker = tmp_path / "marian" / "pytorch_model.bin", tmp_path / "marker"
    torch.save(hostile("os.system", marker), weights)
    with Process(*marian, "--out", tmp_path / "out") as process:
        done = process.result()
    assert done.code == 65
    assert_mentions(done.said, weights, "posix.system")
    assert not marker.exists() and not (tmp_path / "out").exists()


def damaged(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def text(file: Path) -> None:
    file.write_text("The old man sleeps.\n")


def another_kind(file: Path) -> None:
    save_file({"a": torch.ones(2)}, file)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("name", "change", "code", "facts"),
    [
        ("model.pt", damaged, 65, ("torch.save",)),
        ("model.pt", text, 65, ("torch.save",)),
        ("model.pt", another_kind, 65, ("torch.save",)),
        ("model.pt", directory, 2, ("OpenNMT-py",)),
        ("model.pt", Path.unlink, 2, ("OpenNMT-py",)),
        ("spm.model", text, 65, ("sentencepiece",)),
        ("spm.model", Path.unlink, 2, ("--tokenizer", "sentencepiece")),
    ],
)
def test_a_bad_checkpoint_or_tokenizer_exits_with_its_code(
    name: str,
    change: Callable[[Path], None],
    code: int,
    facts: tuple[str, ...],
    opennmt: list[str | Path],
    run: Command,
    tmp_path: Path,
) -> None:
    change(tmp_path / name)
    done = run(*opennmt, "--out", tmp_path / "out")
    assert done.code == code
    assert_mentions(done.said, tmp_path / name, *facts)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_supported_exits_with_65(
    marian: list[str | Path], run: Command, tmp_path: Path
) -> None:
    config = tmp_path / "marian" / "config.json"
    changed = json.loads(config.read_text()) | {"activation_function": "tanh"}
    config.unlink()
    config.write_text(json.dumps(changed))
    done = run(*marian, "--out", tmp_path / "out")
    assert done.code == 65
    assert_mentions(done.said, config, "activation_function", "relu", "tanh")


def test_a_folder_that_is_no_marian_model_exits_with_65_and_none_with_2(
    run: Command, tmp_path: Path
) -> None:
    done = run("import", "marian", tmp_path, "--out", tmp_path / "out")
    assert done.code == 65
    assert_mentions(done.said, tmp_path, "MarianMT", "config.json")
    done = run("import", "marian", tmp_path / "none", "--out", tmp_path / "out")
    assert done.code == 2
    assert_mentions(done.said, tmp_path / "none", "MarianMT")


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("opennmt", "model_step_100000.pt --tokenizer spm.model --out models/de"),
        ("marian", "opus-mt-en-de --out models/de"),
    ],
)
def test_help_shows_an_example(name: str, example: str, run: Command) -> None:
    done = run("import", name, "--help")
    assert done.code == 0
    assert f"edgewise import {name} {example}" in " ".join(done.out.decode().split())
