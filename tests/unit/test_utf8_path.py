"""Names that are not UTF-8, for libraries that take UTF-8 alone."""

import os
from pathlib import Path

from edgewise.settings import read_toml
from edgewise.storage import utf8_path, write_text
from edgewise.training.metrics import Metrics
from edgewise.training.settings import RunSettings


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_name_that_is_utf8_stays_as_it_is(tmp_path: Path) -> None:
    with utf8_path(tmp_path / "größe") as name:
        assert name == str(tmp_path / "größe")


def test_a_file_or_folder_has_another_name_as_long_as_that_is_needed(not_utf8: Path) -> None:
    before = descriptors()
    with utf8_path(not_utf8) as name:
        name.encode()
        Path(name, "file").write_text("content")
    with utf8_path(not_utf8 / "file") as name:
        name.encode()
        assert Path(name).read_text() == "content"
    assert descriptors() == before


def test_settings_with_such_a_name_survive_their_file(not_utf8: Path) -> None:
    settings = RunSettings(corpus=not_utf8 / "corpus", out=not_utf8, init_from=not_utf8 / "model")
    write_text(not_utf8 / "config.toml", settings.toml())
    assert RunSettings.read(not_utf8 / "config.toml") == settings
    assert read_toml(not_utf8 / "config.toml")["out"] == str(not_utf8)


def test_metrics_are_written_below_such_a_name(not_utf8: Path) -> None:
    before = descriptors()
    metrics = Metrics(not_utf8, 0)
    metrics.write("update", 1, loss=2.5)
    metrics.flush()
    metrics.close()
    assert '"loss": 2.5' in (not_utf8 / "metrics.jsonl").read_text()
    (events,) = (not_utf8 / "tensorboard").iterdir()
    assert b"update/loss" in events.read_bytes()
    assert descriptors() == before
