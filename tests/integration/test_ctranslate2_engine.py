"""CTranslate2 as an engine: where its own search would differ from ours, it is made good."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from messages import raises

from edgewise.checkpoint.model_folder import weights, write_model
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import PAD, UNKNOWN, Vocabulary
from edgewise.decoding import DecodingSettings
from edgewise.decoding.native import NativeEngine
from edgewise.errors import DataError, EdgewiseError, SettingError
from edgewise.interop.ctranslate2 import POSITIONS, export
from edgewise.interop.ctranslate2_engine import CTranslate2Engine
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

SETTINGS = DecodingSettings(beam=3, n_best=3, length_penalty=0.0, max_length=9)
SIZES = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 24, "heads": 3, "d_ff": 40}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([line for pair in pairs(200, 1) for line in pair], 340)


def engines(
    vocabulary: Vocabulary, folder: Path, liked: int | None = None, **changes: Any
) -> tuple[NativeEngine, CTranslate2Engine]:
    """Ours and theirs, of one model. liked: a token that is likely everywhere."""
    given = {"max_distance": 2, "tables": "layer"} | changes
    model = Transformer(ModelSettings(**SIZES | given), vocabulary.size)
    initialise(model, 3)
    with torch.no_grad():
        model.embedding.weight.mul_(3)
        if liked is not None:
            bias = model.decoder[-1].around_feed_forward.norm.bias
            bias.add_(model.embedding.weight[liked], alpha=3)
    write_model(folder / "model", weights(model), model.settings, vocabulary, {})
    export(folder / "model", folder / "out")
    return NativeEngine([model], vocabulary), CTranslate2Engine(folder / "out", threads=1)


@pytest.mark.parametrize("token", [UNKNOWN, PAD])
def test_tokens_that_are_no_text_are_ruled_out_and_the_rest_is_scored_as_ours(
    token: int, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    native, engine = engines(vocabulary, tmp_path, liked=token)
    sources = vocabulary.encode([source for source, _ in pairs(6, 3)])
    asked = engine._hypotheses(sources, [[]] * 6, 9, SETTINGS, engine._plain)
    assert any(token in each.tokens for found in asked for each in found)
    for source, found in zip(sources, engine.search(sources, [[]] * 6, SETTINGS), strict=True):
        for each in found:
            assert engine._excluded.isdisjoint(each.tokens)
            (expected,) = native.score([source], [each.tokens])
            assert each.log_probability == pytest.approx(expected, abs=1e-3)


def test_a_prefix_that_fills_the_limit_is_one_translation(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    both = engines(vocabulary, tmp_path)
    settings = SETTINGS.model_copy(update={"max_length": 2})
    ours, theirs = (each.search([[7, 8, 9]], [[10, 11]], settings)[0] for each in both)
    assert [each.tokens for each in theirs] == [each.tokens for each in ours] == [(10, 11)]
    assert theirs[0].log_probability == pytest.approx(ours[0].log_probability, abs=1e-3)


def test_a_sentence_that_is_not_wanted_is_not_searched_for(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    _, engine = engines(vocabulary, tmp_path)
    found = engine.search([[7], [8, 9]], [[], []], SETTINGS, wanted=lambda i: i == 1)
    assert found[0] == [] and len(found[1]) == 3


def test_alternatives_with_long_prefixes_end_when_they_are_no_longer_wanted(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine = engines(vocabulary, tmp_path)
    searched: list[int] = []
    monkeypatch.setattr(
        *(engine, "_hypotheses"),
        lambda sources, *rest, **options: searched.append(len(sources)) or [[]] * len(sources),
    )
    settings = SETTINGS.model_copy(update={"alternatives": True, "n_best": 8})
    # Of 700 tokens, as few prefixes are continued together as sources would be.
    assert engine.search([[7]], [[9, 8] * 350], settings, lambda i: sum(searched) < 2) == [[]]
    assert sum(searched) == 2 and max(searched) == 1


@pytest.mark.parametrize("what", ["source", "limit", "target"])
def test_more_positions_than_were_exported_are_refused(
    what: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    _, engine = engines(vocabulary, tmp_path, max_distance=None, sinusoids=True)
    longer = SETTINGS.model_copy(update={"max_length": POSITIONS + 1})
    calls: dict[str, Callable[[], object]] = {
        "source": lambda: engine.search([[7] * POSITIONS], [[]], SETTINGS),
        "limit": lambda: engine.search([[7]], [[]], longer),
        "target": lambda: engine.score([[7]], [[7] * POSITIONS]),
    }
    with raises(SettingError, "5,000", "5,001", "max_length", "max_source_tokens"):
        calls[what]()


def test_weights_that_are_not_numbers_are_told(vocabulary: Vocabulary, tmp_path: Path) -> None:
    model = Transformer(ModelSettings(**SIZES, tables="layer"), vocabulary.size)
    initialise(model, 3)
    with torch.no_grad():
        model.decoder[1].around_feed_forward.norm.bias.fill_(torch.nan)
    write_model(tmp_path / "model", weights(model), model.settings, vocabulary, {})
    export(tmp_path / "model", tmp_path / "out")
    engine = CTranslate2Engine(tmp_path / "out", threads=1)
    for call in (
        lambda: engine.search([[7]], [[]], SETTINGS),
        lambda: engine.score([[7]], [[8]]),
    ):
        with raises(DataError, "weights", "damaged"):
            call()


def test_without_the_package_the_extra_is_named(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines(vocabulary, tmp_path)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with raises(EdgewiseError, "ctranslate2", "edgewise[export]"):
        CTranslate2Engine(tmp_path / "out")
