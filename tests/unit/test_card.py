"""Cards: data, scores with signatures, how to load; written into folders that stay whole."""

from dataclasses import replace
from pathlib import Path

import pytest
from messages import raises

from edgewise.checkpoint.card import Scored, add_score
from edgewise.checkpoint.model_folder import KIND, VERSION, read_model, weights, write_model
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.errors import DataError
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import MANIFEST, read_json, seal, write_json

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
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    add_score(folder, KIND, VERSION, SCORE)
    text = card(folder)
    assert "| a.en, a.de | 1,234 | beam 4, length penalty 0.6 | 31.2 | 55.5 |" in text
    assert "By sacreBLEU: `bleu|x`, `chrf|y`." in text
    assert "train.en and train.de" in text and "None yet" not in text
    read_model(folder)  # whole
    # Weights are not written once more.
    assert (folder / "model.safetensors").stat().st_ino == before["model.safetensors"]
    assert {path.name for path in folder.iterdir()} == before.keys()


def test_a_second_score_of_the_same_test_takes_the_place_of_the_first(folder: Path) -> None:
    add_score(folder, KIND, VERSION, SCORE)
    add_score(folder, KIND, VERSION, replace(SCORE, search="beam 1, length penalty 0"))
    add_score(folder, KIND, VERSION, replace(SCORE, bleu=40.0))
    rows = [line for line in card(folder).splitlines() if line.startswith("| a.en")]
    assert len(rows) == 2
    assert "| 31.2 |" in rows[0] and "beam 1" in rows[0]
    assert "| 40.0 |" in rows[1]


def test_a_folder_of_an_older_edgewise_gets_what_it_does_not_say(folder: Path) -> None:
    config = read_json(folder / "config.json")
    older = {name: config[name] for name in ("architecture", "vocabulary", "languages")}
    write_json(folder / "config.json", older)
    (folder / MANIFEST).unlink()
    seal(folder, KIND, VERSION)
    add_score(folder, KIND, VERSION, SCORE)
    text = card(folder)
    assert f"| parameters | {config['parameters']:,} |" in text
    assert "Not known." in text and "| 31.2 |" in text


def test_scores_that_cannot_be_read_are_told(folder: Path) -> None:
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", config | {"scores": [{"bleu": 1.0, "other": 2}]})
    (folder / MANIFEST).unlink()
    seal(folder, KIND, VERSION)
    with raises(DataError, folder / "config.json", "score"):
        add_score(folder, KIND, VERSION, SCORE)


def test_what_others_put_into_the_folder_stays_and_is_not_sealed(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "LICENSE").write_text("mine")
    (folder / "out.de").write_text("translations")
    add_score(folder, KIND, VERSION, SCORE)
    assert (folder / "notes" / "LICENSE").read_text() == "mine"
    (folder / "out.de").write_text("others")
    read_model(folder)


def test_a_damaged_folder_gets_no_score(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    with raises(DataError, folder, "damaged", "model.safetensors"):
        add_score(folder, KIND, VERSION, SCORE)
    assert "None yet" in card(folder)


def test_a_disk_without_links_gets_copies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refused)
    add_score(folder, KIND, VERSION, SCORE)
    read_model(folder)
    assert "| 31.2 |" in card(folder)
