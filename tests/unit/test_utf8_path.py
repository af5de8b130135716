"""Names that are not UTF-8, for libraries that take UTF-8 alone."""

import os
from pathlib import Path

import pytest

from edgewise.settings import read_toml
from edgewise.storage import utf8_path, write_text
from edgewise.training.metrics import Metrics
from edgewise.training.settings import RunSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / os.fsdecode(b"not-utf8-\xff")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"names must be UTF-8 here: {error}")
    return folder


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_name_that_is_utf8_stays_as_it_is(tmp_path: Path) -> None:
    with utf8_path(tmp_path / "größe") as name:
        assert name == str(tmp_path / "größe")


def test_a_file_or_folder_has_another_name_as_long_as_that_is_needed(folder: Path) -> None:
    before = descriptors()
    with utf8_path(folder) as name:
        name.encode()
        Path(name, "file").write_text("content")
    with utf8_path(folder / "file") as name:
        name.encode()
        assert Path(name).read_text() == "content"
    assert descriptors() == before


def test_settings_with_such_a_name_survive_their_file(folder: Path) -> None:
    settings = RunSettings(corpus=folder / "corpus", out=folder, init_from=folder / "model")
    write_text(folder / "config.toml", settings.toml())
    assert RunSettings.read(folder / "config.toml") == settings
    assert read_toml(folder / "config.toml")["out"] == str(folder)


def test_metrics_are_written_below_such_a_name(folder: Path) -> None:
    before = descriptors()
    metrics = Metrics(folder, 0)
    metrics.write("update", 1, loss=2.5)
    metrics.flush()
    metrics.close()
    assert '"loss": 2.5' in (folder / "metrics.jsonl").read_text()
    (events,) = (folder / "tensorboard").iterdir()
    assert b"update/loss" in events.read_bytes()
    assert descriptors() == before
