"""From another toolkit to another engine: what was imported is exported and run as our own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from foreign_models import ENGLISH, marian_folder, opennmt_checkpoint, pieces_of, spm

from edgewise.decoding import Translator
from edgewise.interop import ctranslate2, onnx
from edgewise.interop.ctranslate2_engine import CTranslate2Engine
from edgewise.interop.marian import import_marian
from edgewise.interop.onnx_engine import OnnxEngine
from edgewise.interop.opennmt import import_opennmt

# torch.export sees the hook's checks of shapes as part of the model.
pytestmark = [pytest.mark.unhooked, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module", params=["opennmt", "marian"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with two vocabularies and no end of sources, one with biases and sinusoids."""
    path = tmp_path_factory.mktemp("imported")
    if request.param == "marian":
        marian_folder(path, updates=40)
        import_marian(path / "model", path / "out")
        return path / "out"
    models = {"en": spm("en", 370), "de": spm("de", 340)}
    for name, model in models.items():
        (path / name).write_bytes(model)
    torch.save(opennmt_checkpoint(*map(pieces_of, models.values())), path / "model.pt")
    import_opennmt(path / "model.pt", path / "en", path / "out", target_tokenizer=path / "de")
    return path / "out"


@pytest.mark.parametrize("name", ["ctranslate2", pytest.param("onnx", marks=pytest.mark.long)])
def test_an_imported_model_is_exported_as_our_own(name: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if name == "ctranslate2":
        ctranslate2.export(folder, out)
        engine = CTranslate2Engine(out, threads=1)
    else:
        onnx.export(folder, out)
        engine = OnnxEngine.load([out], threads=1)
    ours, theirs = Translator.load(folder), Translator(engine)
    settings = {"beam": 3, "n_best": 2, "length_penalty": 0.0, "max_length": 20}
    texts = [*ENGLISH[:20], "\u200b", "Ω unknown Ω"]
    found = [each.translations(texts, alignments=True, **settings) for each in (ours, theirs)]
    assert len({each[0].text for each in found[0]}) > 5
    for one, other in zip(*found, strict=True):
        assert [each.text for each in other] == [each.text for each in one]
        assert [each.alignment for each in other] == [each.alignment for each in one]
        values = [[each.log_probability for each in side] for side in (one, other)]
        np.testing.assert_allclose(*values, atol=1e-3)
    targets = [each[0].text for each in found[0]]
    sources = ["", *texts[1:]]  # nothing at all is a source, too
    np.testing.assert_allclose(
        [each.log_probability for each in theirs.score(sources, targets)],
        [each.log_probability for each in ours.score(sources, targets)],
        atol=1e-3,
    )


def test_what_a_vocabulary_leaves_nothing_of_stays_empty(folder: Path) -> None:
    translator = Translator.load(folder)
    assert translator.vocabulary.encode(["\u200b"]) == [[]]
    assert translator.translate(["\u200b", ENGLISH[0]], max_length=9)[0] == ""
