"""Cards: data, scores with signatures, how to load; written into folders that stay whole."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from everything import everything
from messages import raises

from edgewise.checkpoint.card import Scored, add_score
from edgewise.checkpoint.model_folder import read_model, weights, write_model
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.errors import DataError
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

SCORE = Scored("a.en", "a.de", 1234, "beam 4, length penalty 0.6", 31.25, "bleu|x", 55.5, "chrf|y")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([line for pair in pairs(200, 1) for line in pair], 340)


@pytest.fixture
def folder(vocabulary: Vocabulary, tmp_path: Path) -> Path:
    settings = ModelSettings(encoder_layers=1, decoder_layers=2, d_model=12, heads=3, d_ff=20)
    model = Transformer(settings, vocabulary.size)
    initialise(model, 4)
    write_model(
        *(tmp_path / "model", weights(model), settings, vocabulary, {"updates": 7}),
        languages=("en", "de"),
        data=["train.en and train.de: 12 pairs", "more.en and more.de: 3 pairs"],
    )
    return tmp_path / "model"


def card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def test_it_names_data_and_how_to_load(folder: Path) -> None:
    text = card(folder)
    assert text.startswith("# A translation model: en to de\n")
    assert "- train.en and train.de: 12 pairs\n- more.en and more.de: 3 pairs\n" in text
    assert "| updates | 7 |" in text
    assert 'Translator.load("this folder")' in text
    assert "None yet: `edgewise evaluate … --card` writes them here." in text


def test_scores_stand_there_with_their_signatures(folder: Path) -> None:
    add_score(folder, SCORE)
    text = card(folder)
    assert "| a.en, a.de | 1,234 | beam 4, length penalty 0.6 | 31.2 | 55.5 |" in text
    assert "By sacreBLEU: `bleu|x`, `chrf|y`." in text
    assert "train.en and train.de" in text and "None yet" not in text
    assert text.index("## Scores") < text.index("| 31.2 |") < text.index("## How to load it")
    read_model(folder)


def test_a_second_score_of_the_same_test_takes_the_place_of_the_first(folder: Path) -> None:
    add_score(folder, SCORE)
    add_score(folder, replace(SCORE, search="beam 1, length penalty 0", bleu_signature="bleu|z"))
    add_score(folder, replace(SCORE, bleu=40.0))
    rows = [line for line in card(folder).splitlines() if line.startswith("| a.en")]
    assert len(rows) == 2
    assert "| 31.2 |" in rows[0] and "beam 1" in rows[0]
    assert "| 40.0 |" in rows[1]
    assert "By sacreBLEU: `bleu|x`, `chrf|y`, `bleu|z`." in card(folder)


def test_only_the_card_is_changed(folder: Path) -> None:
    (folder / ".git" / "refs" / "heads").mkdir(parents=True)
    (folder / "models").symlink_to("tokenizer")
    (folder / "out.de").write_text("translations")
    (folder / "config.json").chmod(0o640)
    (folder / "README.md").chmod(0o660)
    os.mkfifo(folder / "fifo")
    before, inode = everything(folder), folder.stat().st_ino
    add_score(folder, SCORE)
    after = everything(folder)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed == {"README.md"}
    assert stat.S_IMODE((folder / "README.md").stat().st_mode) == 0o660
    assert folder.stat().st_ino == inode


def test_what_people_have_written_into_the_card_stays(folder: Path) -> None:
    path = folder / "README.md"
    mine = "---\nlicense: apache-2.0\n---\n"
    note = "Better than the last one."
    path.write_text(mine + card(folder).replace("None yet", f"{note}\n\nNone yet"))
    add_score(folder, SCORE)
    add_score(folder, replace(SCORE, bleu=40.0))
    text = card(folder)
    assert text.startswith(mine)
    assert text.count(note) == 1 and text.count("| a.en, a.de |") == 1
    assert text.index("| 40.0 |") < text.index(note) < text.index("## How to load it")


def test_a_card_without_the_section_gets_one(folder: Path) -> None:
    for text in ("", "# Mine\n\nA model.\n"):
        (folder / "README.md").write_text(text)
        add_score(folder, SCORE)
        assert card(folder).startswith(text or "## Scores\n")
        assert "\n\n| test set |" in card(folder) and "| 31.2 |" in card(folder)
    (folder / "README.md").unlink()
    add_score(folder, SCORE)
    assert "| 31.2 |" in card(folder)


def test_a_table_of_the_user_stays(folder: Path) -> None:
    path = folder / "README.md"
    mine = "| model | BLEU |\n|---|---|\n| theirs | 1.0 |"
    path.write_text(card(folder).replace("## Scores\n", f"## Scores\r\n\n{mine}\n"))
    for bleu in (31.2, 40.0):
        add_score(folder, replace(SCORE, bleu=bleu))
    assert mine in card(folder)
    assert card(folder).count("## Scores") == 1 and card(folder).count("| a.en, a.de |") == 1


def test_a_card_outside_the_folder_is_not_written(folder: Path) -> None:
    outside = folder.with_name("outside")
    outside.write_text("mine")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(outside)
    with raises(DataError, folder, "README.md", "outside"):
        add_score(folder, SCORE)
    assert outside.read_text() == "mine"


def test_the_table_survives_a_bar_in_a_name(folder: Path) -> None:
    for bleu in (1.0, 2.0):
        add_score(folder, replace(SCORE, source="a|b\nc.en", bleu=bleu))
    rows = [line for line in card(folder).splitlines() if "b c.en" in line]
    assert rows == [r"| a\|b c.en, a.de | 1,234 | beam 4, length penalty 0.6 | 2.0 | 55.5 |"]


def test_a_card_that_is_no_text_is_left(folder: Path) -> None:
    (folder / "README.md").write_bytes(b"\xff")
    with raises(DataError, folder / "README.md", "UTF-8"):
        add_score(folder, SCORE)
    assert (folder / "README.md").read_bytes() == b"\xff"
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    with raises(DataError, folder / "README.md", "regular"):
        add_score(folder, SCORE)
