"""The demo: order matters in the built-in corpus, and relative positions are enough to learn it."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from edgewise.cli.main import run

ROOT = Path(__file__).parents[2]


def test_the_demo_leaves_scores_pictures_and_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("edgewise.cli.demo")  # edgewise.cli has a function of this name
    for name, count in (("TRAIN", 5000), ("VALID", 40), ("TEST", 30)):
        monkeypatch.setattr(module, name, count)
    short = (ROOT / "configs" / "demo.toml").read_text()
    for name, value in (("steps", 6), ("validate_every", 3), ("save_every", 3), ("d_model", 32)):
        short, count = re.subn(rf"^{name} = \d+", f"{name} = {value}", short, flags=re.MULTILINE)
        assert count == 1
    (tmp_path / "short.toml").write_text(short)
    assert run(["demo", "--config", f"{tmp_path}/short.toml", "--out", f"{tmp_path}/demo"]) == 0
    printed = capsys.readouterr().err
    assert printed.count("  BLEU ") == 2 and "nrefs:1" in printed
    assert f"edgewise serve --model {tmp_path}/demo/model" in printed
    scores = json.loads((tmp_path / "demo" / "bleu.json").read_text())
    assert set(scores) == {"relative", "none"}
    assert (tmp_path / "demo" / "model" / "model.safetensors").is_file()
    pictures = sorted((tmp_path / "demo" / "attention").glob("*.png"))
    assert len(pictures) == 2 and pictures[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_relative_positions_learn_the_order_and_no_positions_do_not(tmp_path: Path) -> None:
    assert run(["demo", "--out", str(tmp_path / "demo")]) == 0
    scores = json.loads((tmp_path / "demo" / "bleu.json").read_text())
    assert scores["relative"]["value"] >= 90
    assert scores["none"]["value"] <= scores["relative"]["value"] - 10
