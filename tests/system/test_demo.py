"""The demo: order matters in the built-in corpus, and relative positions are enough to learn it."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from everything import everything
from messages import assert_mentions
from tiny_model import make_model, make_vocabulary

from edgewise.cli.main import USAGE, run

ROOT = Path(__file__).parents[2]


def test_the_demo_leaves_scores_pictures_and_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("edgewise.cli.demo")  # edgewise.cli has a function of this name
    for name, count in (("TRAIN", 5000), ("VALID", 40), ("TEST", 30)):
        monkeypatch.setattr(module, name, count)
    short = (ROOT / "configs" / "demo.toml").read_text()
    # Fewer updates than `validate_every`: there is no best model, and the last one is taken.
    for name, value in (("steps", 3), ("validate_every", 4), ("save_every", 3), ("d_model", 32)):
        short, count = re.subn(rf"^{name} = \d+", f"{name} = {value}", short, flags=re.MULTILINE)
        assert count == 1
    (tmp_path / "short.toml").write_text(short)
    command = ["demo", "--config", f"{tmp_path}/short.toml", "--out", f"{tmp_path}/demo"]
    assert run(command) == 0
    printed = capsys.readouterr().err
    assert printed.count("  BLEU ") == 2 and "nrefs:1" in printed
    assert f"edgewise serve --model {tmp_path}/demo/model" in printed
    scores = json.loads((tmp_path / "demo" / "bleu.json").read_text())
    assert set(scores) == {"relative", "none"}
    assert (tmp_path / "demo" / "model" / "model.safetensors").is_file()
    pictures = sorted((tmp_path / "demo" / "attention").glob("*.png"))
    assert len(pictures) == 2 and pictures[0].read_bytes().startswith(b"\x89PNG")
    # A second time, what is there is taken; also where an older version left no manifest.
    weights = (tmp_path / "demo" / "model" / "model.safetensors").read_bytes()
    (tmp_path / "demo" / "manifest.json").unlink()
    assert run(command) == 0
    assert (tmp_path / "demo" / "model" / "model.safetensors").read_bytes() == weights
    assert "pairs of English and German" not in capsys.readouterr().err


MINE = {
    "text/train.en": b"mine",
    "model/notes.txt": b"mine",
    "corpus/notes.txt": b"mine",
    "relative/notes.txt": b"mine",
    "attention/notes.txt": b"mine",
    "bleu.json": b"mine",
    "manifest.json": b'{"name": "of a web site"}',
}


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]], ids=["", "overwrite"])
@pytest.mark.parametrize("name", MINE)
def test_a_demo_replaces_nothing_that_it_did_not_write(
    name: str, overwrite: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(MINE[name])
    before = everything(tmp_path)
    assert run(["demo", "--out", str(tmp_path), *overwrite]) == USAGE
    assert_mentions(capsys.readouterr().err, tmp_path / name.split("/")[0], "--out")
    assert everything(tmp_path) == before


def test_a_demo_keeps_a_model_that_somebody_has_put_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(tmp_path / "model", make_vocabulary())
    before = everything(tmp_path)
    for overwrite in ([], ["--overwrite"]):
        assert run(["demo", "--out", str(tmp_path), *overwrite]) == USAGE
    assert everything(tmp_path) == before


@pytest.mark.long
def test_relative_positions_learn_the_order_and_no_positions_do_not(tmp_path: Path) -> None:
    assert run(["demo", "--out", str(tmp_path / "demo")]) == 0
    scores = json.loads((tmp_path / "demo" / "bleu.json").read_text())
    assert scores["relative"]["value"] >= 90
    assert scores["none"]["value"] <= scores["relative"]["value"] - 10
