"""Text in, text out: a tiny model of random weights, whose translations need make no sense."""

import math

import pytest
import torch
from messages import assert_mentions, raises

from edgewise.checkpoint.model_folder import weights, write_model
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary
from edgewise.decoding import DecodingSettings, Translator
from edgewise.decoding.engine import Engine
from edgewise.decoding.native import NativeEngine
from edgewise.decoding.settings import penalty
from edgewise.errors import ArgumentError, DataError, EdgewiseError, SettingError
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import seal

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [english for english, _ in pairs(12, seed=5)]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train((line for pair in pairs(2000, seed=1) for line in pair), 500)


def made(vocabulary: Vocabulary, seed: int = 1, **changes: object) -> Transformer:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 48, "heads": 4, "d_ff": 64}
    model = Transformer(ModelSettings(**sizes | {"max_distance": 4} | changes), vocabulary.size)
    initialise(model, seed)
    with torch.no_grad():
        # So that tokens differ in probability, and that the end comes now and then.
        model.embedding.weight.mul_(3)
        model.embedding.weight[END] *= 1.5
    return model


@pytest.fixture(scope="module")
def translator(vocabulary: Vocabulary) -> Translator:
    return Translator(
        NativeEngine([made(vocabulary)], vocabulary), DecodingSettings(extra_tokens=5)
    )


def plain_beam_search(model: Transformer, source: list[int], settings: DecodingSettings, newline):
    """The same search without cache, batch or bound, by whole forward passes in float64."""
    model = made_double(model)
    memory = model.encode(torch.tensor([[*source, END]]), None)
    limit = len(source) + settings.extra_tokens
    living, finished = [((), 0.0)], []
    for length in range(limit + 1):
        options = []
        for tokens, value in living:
            states = model.decode(torch.tensor([[BEGIN, *tokens]]), memory, None)[:, -1:]
            found = torch.log_softmax(model.logits(states)[0, 0], dim=0)
            found[[PAD, BEGIN, UNKNOWN, newline]] = -math.inf
            if length == limit:
                options.append((value + float(found[END]), tokens, END))
                continue
            top = found.topk(settings.beam + 1)
            options += [
                (value + v, tokens, t)
                for v, t in zip(top.values.tolist(), top.indices.tolist(), strict=True)
            ]
        options.sort(key=lambda option: -option[0])
        for value, tokens, token in options[: settings.beam]:
            if token == END:
                score = value / penalty(len(tokens) + 1, settings.length_penalty)
                finished.append((score, tokens))
        going = [(value, (*tokens, token)) for value, tokens, token in options if token != END]
        living = [(tokens, value) for value, tokens in going[: settings.beam]]
    return sorted(finished, key=lambda found: -found[0])


def made_double(model: Transformer) -> Transformer:
    copy = Transformer(model.settings, model.vocabulary)
    copy.load_state_dict(model.state_dict())
    return copy.double().eval()


@pytest.mark.parametrize("beam", [1, 3])
@torch.inference_mode()
def test_the_search_equals_one_without_cache_batch_or_bound(translator, vocabulary, beam):
    settings = translator.changed({"beam": beam, "n_best": beam})
    sources = vocabulary.encode(TEXTS[:5])
    found = translator.engine.search(sources, [[]] * 5, settings)
    for source, hypotheses in zip(sources, found, strict=True):
        expected = plain_beam_search(
            translator.engine.models[0], source, settings, vocabulary.newline
        )[:beam]
        assert [each.tokens for each in hypotheses] == [tokens for _, tokens in expected]
        scores = [each.score for each in hypotheses]
        assert scores == pytest.approx([score for score, _ in expected], abs=1e-4)


def test_a_translation_is_scored_as_the_search_scored_it(translator):
    for text, found in zip(TEXTS, translator.translations(TEXTS, n_best=4), strict=True):
        engine, encode = translator.engine, translator.vocabulary.encode
        for each in found:
            # The tokens as found: their text may be cut into other tokens.
            tokens = [translator.vocabulary._processor.piece_to_id(p) for p in each.pieces]
            (value,) = engine.score(encode([text]), [tokens])
            assert value == pytest.approx(each.log_probability, abs=1e-4)


@pytest.mark.parametrize("settings", [{}, {"beam": 1}, {"sample": True, "top_k": 5, "n_best": 2}])
def test_translations_do_not_depend_on_batch_or_order(translator, settings):
    together = translator.translations(TEXTS, **settings)
    alone = [translator.translations([text], **settings)[0] for text in TEXTS]
    assert together == alone  # scores too, to the last bit
    assert translator.translations(TEXTS[::-1], **settings) == together[::-1]
    small = Translator(
        NativeEngine(translator.engine.models, translator.vocabulary, batch_tokens=64),
        translator.settings,
    )
    assert small.translations(TEXTS, **settings) == together


def test_scores_do_not_depend_on_the_batch(translator):
    targets = TEXTS[1:] + TEXTS[:1]
    together = translator.score(TEXTS, targets)
    alone = [translator.score([a], [b])[0] for a, b in zip(TEXTS, targets, strict=True)]
    assert together == alone


def test_an_empty_text_stays_empty_and_its_neighbours_are_translated(translator):
    found = translator.translate(["", TEXTS[0], "   ", TEXTS[1]])
    assert found[0] == found[2] == ""
    assert found[1::2] == translator.translate(TEXTS[:2])
    assert translator.translate([]) == []


def test_a_translation_begins_with_its_prefix(translator):
    prefixes = ["Der alte Mann", "", "Die"]
    found = translator.translations(TEXTS[:3], prefixes=prefixes, n_best=3)
    for prefix, several in zip(prefixes, found, strict=True):
        assert all(each.text.startswith(prefix) for each in several)
    assert found[1] == translator.translations([TEXTS[1]], n_best=3)[0]


def test_alternatives_differ_in_the_first_token_after_the_prefix(translator, vocabulary):
    (found,) = translator.translations(
        TEXTS[:1], prefixes=["Der"], n_best=4, alternatives=True, beam=4
    )
    (prefix,) = vocabulary.encode(["Der"])
    assert len({each.pieces[: len(prefix) + 1] for each in found}) == 4
    assert len({each.pieces[: len(prefix)] for each in found}) == 1
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)


def test_a_translation_has_at_most_so_many_tokens_more_than_its_source(vocabulary):
    model = made(vocabulary)
    with torch.no_grad():
        model.embedding.weight[END] = 0  # an end that never comes
        model.embedding.weight[END, 0] = -100 * model.embedding.weight.abs().max()
    engine = NativeEngine([model], vocabulary)
    for extra in (0, 3):
        translator = Translator(engine, DecodingSettings(extra_tokens=extra, beam=2))
        for text, (found,) in zip(TEXTS, translator.translations(TEXTS), strict=True):
            assert len(found.pieces) <= len(vocabulary.encode([text])[0]) + extra
    assert DecodingSettings().limit(7) == 57
    assert DecodingSettings(max_length=5).limit(7) == 5
    assert DecodingSettings(max_length=5).limit(7, prefix=6) == 6


def test_lengths_are_kept(translator):
    found = translator.translations(TEXTS, n_best=4, min_length=6, max_length=8)
    assert all(6 <= len(each.pieces) <= 8 for several in found for each in several)


def test_no_translation_has_unknown_pieces_or_ends_a_line(vocabulary):
    model = made(vocabulary)
    with torch.no_grad():  # a model that likes nothing better
        liked = [PAD, BEGIN, UNKNOWN, vocabulary.newline]
        model.embedding.weight[liked] = 10 * model.embedding.weight.abs().max()
    settings = DecodingSettings(extra_tokens=5)
    translator = Translator(NativeEngine([model], vocabulary), settings)
    for each in (translator.translations(TEXTS), translator.translations(TEXTS, sample=True)):
        for (found,) in each:
            assert "\n" not in found.text
            assert not {"<pad>", "<s>", "<unk>", "<0x0A>"} & set(found.pieces)


def test_a_model_twice_translates_as_alone_and_two_as_their_mean(vocabulary):
    first, second = made(vocabulary, 1), made(vocabulary, 2)
    settings = DecodingSettings(extra_tokens=5)
    alone = Translator(NativeEngine([first], vocabulary), settings)
    twice = Translator(NativeEngine([first, first], vocabulary), settings)
    assert twice.translate(TEXTS) == alone.translate(TEXTS)
    both = Translator(NativeEngine([first, second], vocabulary), settings)
    (found,), (text,) = both.translations(TEXTS[:1]), TEXTS[:1]
    source, target = (
        vocabulary.encode([text])[0],
        [vocabulary._processor.piece_to_id(piece) for piece in found[0].pieces],
    )
    mean = 0.0
    for step in range(len(target) + 1):
        each = []
        for model in (first, second):
            states = model.states(
                torch.tensor([[*source, END]]), None, torch.tensor([[BEGIN, *target[:step]]])
            )
            wanted = [*target, END][step]
            each.append(torch.softmax(model.logits(states)[0, -1], dim=0)[wanted].item())
        mean += math.log(sum(each) / 2)
    assert found[0].log_probability == pytest.approx(mean, abs=1e-4)
    assert both.engine.score([source], [target])[0] == pytest.approx(mean, abs=1e-4)


def test_alignments_link_words_of_source_and_translation(translator):
    for text, (found,) in zip(TEXTS, translator.translations(TEXTS, alignments=True), strict=True):
        assert [target for _, target in found.alignment] == list(range(len(found.alignment)))
        assert all(0 <= source < len(text.split()) for source, _ in found.alignment)


def test_models_that_translate_together_have_one_vocabulary(vocabulary, tmp_path):
    other = Vocabulary.train((line for pair in pairs(2000, seed=1) for line in pair), 400)
    for name, words in (("a", vocabulary), ("b", other)):
        model = made(words)
        write_model(tmp_path / name, weights(model), model.settings, words, {})
    with raises(SettingError, "vocabulary", tmp_path / "b", tmp_path / "a"):
        Translator.load(tmp_path / "a", tmp_path / "b")


def test_a_folder_may_ask_for_other_settings_and_an_argument_overrules_it(vocabulary, tmp_path):
    model = made(vocabulary)
    write_model(tmp_path / "m", weights(model), model.settings, vocabulary, {})
    settings = Translator.load(tmp_path / "m").settings
    assert (settings.beam, settings.length_penalty, settings.extra_tokens) == (4, 0.6, 50)
    assert Translator.load(tmp_path / "m").changed({"beam": 2}).beam == 2


def test_the_engine_keeps_to_the_protocol(translator):
    assert isinstance(translator.engine, Engine)


@pytest.mark.unhooked
def test_bad_arguments_are_named(translator):
    with raises(ArgumentError, "texts", "list", "[text]"):
        translator.translate("text")
    with raises(ArgumentError, "texts", "int"):
        translator.translate([3])
    with raises(ArgumentError, "prefixes", "texts", 2, 1):
        translator.translations(["a", "b"], prefixes=["c"])
    with raises(ArgumentError, "targets", "sources", 1, 2):
        translator.score(["a"], ["b", "c"])
    with raises(SettingError, "beams"):
        translator.translate(["a"], beams=3)
    with raises(SettingError, "n_best", 5, "beam", 4):
        translator.translate(["a"], n_best=5)
    with raises(SettingError, "top_k", "sample"):
        translator.translate(["a"], top_k=5)
    with raises(SettingError, "min_length", 5, "max_length", 4):
        translator.translate(["a"], min_length=5, max_length=4)
    with raises(SettingError, "alternatives", "sample"):
        translator.translate(["a"], sample=True, alternatives=True)


def test_a_folders_sampling_does_not_matter_where_it_is_turned_off(translator):
    sampling = Translator(translator.engine, DecodingSettings(sample=True, top_k=5, seed=3))
    assert sampling.changed({"sample": False}) == DecodingSettings()
    assert sampling.changed({"n_best": 6}).top_k == 5


def test_lack_of_memory_is_told_with_what_to_lower(translator, monkeypatch):
    def full(*arguments: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr("edgewise.decoding.native.Steps", full)
    limit = translator.engine.batch_tokens
    with raises(EdgewiseError, "memory", "cpu", "batch_tokens", limit):
        translator.translate(["a"])


def test_a_text_that_is_too_long_is_refused_with_its_number(translator):
    long = "xy" * 1200
    found = len(translator.vocabulary.encode([long])[0])
    assert 2000 <= found < 3000
    facts = (f"{found:,}", "1,024", "max_source_tokens")
    with raises(ArgumentError, "prefixes[0]", *facts):
        translator.translations(["a"], prefixes=[long])
    with raises(ArgumentError, "model"):
        Translator.load()
    with raises(ArgumentError, "texts[1]", *facts):
        translator.translate(["a", long])


def test_encoded_texts_are_translated_and_scored_as_texts(translator):
    encoded = translator.encode(TEXTS)
    expected = translator.translations(TEXTS)
    assert translator.translations(encoded) == expected
    targets = [found[0].text for found in expected]
    scores = translator.score(TEXTS, targets)
    assert translator.score(encoded, translator.encode(targets, target=True)) == scores
    begun = translator.encode(["Der", *[""] * 11], target=True)
    found = translator.translations(encoded, prefixes=begun)
    assert found == translator.translations(TEXTS, prefixes=begun.texts)
    assert found[0][0].text.startswith("Der")


def test_a_text_that_is_too_long_is_replaced_where_texts_are_encoded_before(translator):
    long = "xy" * 1200
    encoded = translator.encode(["a", long, "b"])
    assert encoded.texts == ("a", "", "b")
    assert list(encoded.refusals) == [1]
    assert_mentions(encoded.refusals[1], "1,024", "max_source_tokens")
    found = translator.translations(encoded)
    assert [found[0], found[2]] == translator.translations(["a", "b"])
    assert found[1][0].text == ""
    assert encoded.first(1) == translator.encode(["a"])
    assert encoded.first(2).refusals == encoded.refusals


def test_the_length_of_a_translation_is_that_of_its_own_vocabulary(translator, monkeypatch):
    """A model from elsewhere may have a second one for its translations."""
    monkeypatch.setattr(translator.vocabulary, "encode_target", lambda lines: [[9] * 2000] * 3)
    assert not translator.encode(["a", "b", "c"]).refusals
    assert list(translator.encode(["a", "b", "c"], target=True).refusals) == [0, 1, 2]
    with raises(ArgumentError, "targets[0]", "2,000"):
        translator.score(["a", "b", "c"], ["a", "b", "c"])


def test_damaged_generation_settings_are_named(tmp_path):
    from edgewise.decoding.translator import folder_settings

    (tmp_path / "generation_config.json").write_text('{"beam": "wide"}')
    seal(tmp_path, "model", 1)
    with raises(DataError, tmp_path / "generation_config.json", "beam"):
        folder_settings(tmp_path)
