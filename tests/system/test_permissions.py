"""Files that an ordinary user may not read or write: one line that names them, exit code 74.

Root may read everything: there the effective user is another one while the command runs.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from messages import assert_mentions
from small_runs import make_corpus, write_config
from tiny_model import Command, Result, make_model, make_vocabulary

INPUT_OUTPUT = 74
NOBODY = 65534
ONE_UPDATE = ("--training.steps", "1")
pytestmark = pytest.mark.usefixtures("one_thread")


@contextmanager
def ordinary_user() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    before = path.stat().st_mode & 0o7777
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


class Place:
    """A folder that all users can reach, unlike those of pytest, and commands that work in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.text = folder / "corpus-text"
        make_model(folder / "model", make_vocabulary())
        write_config(folder / "tiny.toml", make_corpus(folder / "corpus"))
        self.out.mkdir()
        for name in ("in", "out", "err"):
            (folder / f"{name}-of-the-command").touch()
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        self.command = Command(folder)

    def run(self, name: str) -> Result:
        train, valid = self.text / "train", self.text / "valid"
        model = ("--model", self.folder / "model", "--max-length", "2")
        pair = ("--source", f"{train}.en", "--target", f"{train}.de", "--vocab-size", "400")
        commands: dict[str, tuple[str | Path, ...]] = {
            "translate": model,
            "align": (*model, "--alignments", self.out / "links"),
            "score": (*model[:2], "--source", f"{valid}.en", "--target", f"{valid}.de"),
            "prepare": (*pair, "--out", self.out / "corpus"),
            "train": (self.folder / "tiny.toml", "--out", self.out / "run", *ONE_UPDATE),
        }
        command = "translate" if name == "align" else name
        return self.command(command, *commands[name], stdin="a man\n")


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        for name in ("translate", "align", "score", "prepare", "train"):
            # Also so that all is imported: an ordinary user may not read root's Python.
            assert place.run(name).code == 0
            _empty(place.out)
        with ordinary_user():
            try:
                (place.folder / "tiny.toml").read_bytes()
            except PermissionError:
                pytest.skip(f"an ordinary user cannot reach {folder}")
        yield place


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def assert_told(result: Result, path: Path) -> None:
    assert (result.code, result.out) == (INPUT_OUTPUT, b"")
    last = result.said.splitlines()[-1]
    assert last.startswith("edgewise: ")
    assert_mentions(last, path, "Permission denied")


@pytest.mark.parametrize("name", ["translate", "align", "score", "prepare", "train"])
def test_an_ordinary_user_can_do_what_its_files_allow(name: str, place: Place) -> None:
    with ordinary_user():
        result = place.run(name)
    assert result.code == 0, result.said
    _empty(place.out)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *(("translate", f"model/{name}") for name in ("manifest.json", "generation_config.json")),
        *(("translate", f"model/{name}") for name in ("config.json", "model.safetensors")),
        ("translate", "model/tokenizer/vocabulary.model"),
        ("score", "corpus-text/valid.de"),
        ("prepare", "corpus-text/train.de"),
        ("train", "tiny.toml"),
        *(("train", f"corpus/{name}") for name in ("manifest.json", "vocabulary.model")),
        ("train", "corpus/train/tokens.bin"),
    ],
)
def test_a_file_that_may_not_be_read_is_named(name: str, file: str, place: Place) -> None:
    with mode(place.folder / file, 0), ordinary_user():
        result = place.run(name)
    assert_told(result, place.folder / file)
    assert not any(place.out.iterdir())


@pytest.mark.parametrize(
    ("name", "folder"), [("translate", "model"), ("prepare", "corpus-text"), ("train", "corpus")]
)
def test_a_folder_that_may_not_be_read_is_named(name: str, folder: str, place: Place) -> None:
    with mode(place.folder / folder, 0), ordinary_user():
        result = place.run(name)
    assert_told(result, place.folder / folder)
    assert not any(place.out.iterdir())


@pytest.mark.parametrize("name", ["align", "prepare", "train"])
def test_a_folder_that_may_not_be_written_is_named_and_stays_as_it_is(
    name: str, place: Place
) -> None:
    (place.out / "kept").write_text("kept")
    with mode(place.out, 0o555), ordinary_user():
        result = place.run(name)
    assert_told(result, place.out)
    assert [path.name for path in place.out.iterdir()] == ["kept"]
    _empty(place.out)
