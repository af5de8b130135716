"""Exported models in CTranslate2, in C++: it scores and translates as the model itself does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from ctranslate2.specs import TransformerSpec
from messages import raises
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.checkpoint.model_folder import weights, write_model
from edgewise.data.batches import padded
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary
from edgewise.decoding import DecodingSettings
from edgewise.decoding.native import NativeEngine
from edgewise.errors import DataError, EdgewiseError, SettingError
from edgewise.interop import ctranslate2 as interop
from edgewise.interop.ctranslate2 import POSITIONS, decoding_options, export
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import MANIFEST

BASE: dict[str, Any] = {
    **{"encoder_layers": 2, "decoder_layers": 3, "d_model": 30, "heads": 3, "d_ff": 41},
    **{"max_distance": 2, "tables": "layer"},
}
TEXTS = list(pairs(300, 1))
LINES = 11  # of them
MOST = 60  # tokens of a translation; the longest reference has fewer

# In float32; the largest difference of these was 6e-6.
CLOSE = 1e-4

NEWLINE = 14  # <0x0A>, which no line has
KINDS: dict[str, dict[str, Any]] = {
    "relative, k = 0": {"max_distance": 0},
    "relative, k = 1": {"max_distance": 1},
    "relative, k = 2": {},
    "relative, k beyond all sentences": {"max_distance": 70},
    "relative, pre norm": {"norm": "pre"},
    "relative, shared by layers": {"tables": "shared"},
    "relative on keys only": {"on_values": False},
    "relative on values only": {"on_keys": False},
    "relative on values only, shared": {"on_keys": False, "tables": "shared"},
    "relative, a table for the only head": {"tables": "head", "heads": 1},
    "sinusoids": {"max_distance": None, "sinusoids": True},
    "sinusoids, pre norm": {"max_distance": None, "sinusoids": True, "norm": "pre"},
    "biases": {"bias": True},
    "swish": {"activation": "swish"},
    "gelu, three matrices": {"activation": "gelu", "share_embeddings": False, "bias": True},
    "another epsilon": {"norm_epsilon": 1e-3},
    "no positions": {"max_distance": None},
    "no positions, pre norm": {"max_distance": None, "norm": "pre"},
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([line for pair in TEXTS for line in pair], 400)


def random_model(vocabulary: Vocabulary, **changes: Any) -> Transformer:
    """Norms and biases are random too, so that each one counts."""
    model = Transformer(ModelSettings(**BASE | changes), vocabulary.size)
    initialise(model, 3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.embedding.weight.mul_(3)  # else all tokens are about as likely
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model.eval()


def trained_model(vocabulary: Vocabulary, **changes: Any) -> Transformer:
    """It knows its few pairs well enough to end some translations, and not all of them."""
    settings = {"encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
    model = Transformer(ModelSettings(**BASE | settings | changes), vocabulary.size)
    initialise(model, 1)
    sources, targets = tokens(vocabulary)
    source, target = (torch.from_numpy(padded(rows)) for rows in (sources, targets))
    begin = torch.full((LINES, 1), BEGIN)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        logits = model(source, source != PAD, torch.cat((begin, target[:, :-1]), dim=1))
        loss = cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def tokens(vocabulary: Vocabulary) -> tuple[list[list[int]], list[list[int]]]:
    """Of the sources and of the targets, without begin and end."""
    sources, targets = zip(*TEXTS[:LINES], strict=True)
    return vocabulary.encode(sources), vocabulary.encode(targets)


def write(model: Transformer, vocabulary: Vocabulary, folder: Path) -> Path:
    write_model(folder, weights(model), model.settings, vocabulary, {})
    return folder


def exported(model: Transformer, vocabulary: Vocabulary, tmp_path: Path) -> ctranslate2.Translator:
    export(write(model, vocabulary, tmp_path / "model"), tmp_path / "out")
    return ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)


@torch.inference_mode()
def log_probabilities(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    """Of each target token and of the end after them, by one forward pass."""
    logits = model(torch.tensor([[*source, END]]), None, torch.tensor([[BEGIN, *target]]))
    wanted = torch.tensor([[*target, END]])
    return logits.log_softmax(-1).gather(-1, wanted[..., None])[0, :, 0]


@torch.inference_mode()
def likeliest(model: Transformer, source: list[int]) -> tuple[list[int], float]:
    """The likeliest text, token by token, and its log-probability among texts."""
    result, total = [], 0.0
    memory = model.encode(torch.tensor([[*source, END]]), None)
    for _ in range(MOST):
        logits = model.logits(model.decode(torch.tensor([[BEGIN, *result]]), memory, None))
        last = logits[0, -1].index_fill(0, torch.tensor([PAD, BEGIN, UNKNOWN, NEWLINE]), -torch.inf)
        token = int(last.argmax())
        total += last.log_softmax(-1)[token].item()
        if token == END:
            break
        result.append(token)
    return result, total


def greedy(
    translator: ctranslate2.Translator, vocabulary: Vocabulary, sources: list[list[int]]
) -> list[tuple[list[str], float]]:
    """What CTranslate2 gives, and the sum of the log-probabilities."""
    results = translator.translate_batch(
        [vocabulary.pieces(source) for source in sources],
        beam_size=1,
        length_penalty=0,
        max_decoding_length=MOST,
        return_scores=True,
        **decoding_options(vocabulary),
    )
    return [(result.hypotheses[0], result.scores[0]) for result in results]


# The same numbers.


@pytest.mark.parametrize("kind", KINDS)
def test_scores_in_ctranslate2_equal_those_of_the_model(
    kind: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = random_model(vocabulary, **KINDS[kind])
    translator = exported(model, vocabulary, tmp_path)
    sources, targets = tokens(vocabulary)
    scores = translator.score_batch(
        [vocabulary.pieces(source) for source in sources],
        [vocabulary.pieces(target) for target in targets],
    )
    for source, target, score in zip(sources, targets, scores, strict=True):
        assert min(len(source), len(target)) > 2 * BASE["max_distance"] + 1
        expected = log_probabilities(model, source, target)
        torch.testing.assert_close(torch.tensor(score.log_probs), expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre", "tables": "shared"},
        {"max_distance": None, "sinusoids": True},
        pytest.param({}, marks=pytest.mark.long),
        pytest.param({"on_keys": False}, marks=pytest.mark.long),
    ],
)
def test_greedy_translations_of_ctranslate2_are_the_likeliest_tokens_of_the_model(
    changes: dict[str, Any], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = trained_model(vocabulary, **changes)
    translator = exported(model, vocabulary, tmp_path)
    sources, _ = tokens(vocabulary)
    results = greedy(translator, vocabulary, sources)
    for source, (pieces, score) in zip(sources, results, strict=True):
        expected, total = likeliest(model, source)
        assert pieces == vocabulary.pieces(expected)
        assert score == pytest.approx(total, abs=CLOSE)
    assert any(len(pieces) < MOST for pieces, _ in results)  # so the end is seen
    assert min(len(set(pieces)) for pieces, _ in results) > 5
    assert len({tuple(pieces) for pieces, _ in results}) > LINES // 2


@pytest.mark.parametrize("changes", [{}, {"max_distance": None, "sinusoids": True}])
def test_beam_search_of_ctranslate2_finds_what_ours_finds(
    changes: dict[str, Any], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = trained_model(vocabulary, **changes)
    translator = exported(model, vocabulary, tmp_path)
    sources, _ = tokens(vocabulary)
    theirs = translator.translate_batch(
        [vocabulary.pieces(source) for source in sources],
        beam_size=4,
        length_penalty=0,
        max_decoding_length=MOST + 1,  # which counts the end
        return_scores=True,
        # Its options against <unk> would normalise the probabilities anew.
        min_decoding_length=0,
        max_input_length=0,
    )
    settings = DecodingSettings(beam=4, length_penalty=0.0, max_length=MOST)
    ours = NativeEngine([model], vocabulary).search(sources, [[]] * len(sources), settings)
    compared = 0
    for (mine,), other in zip(ours, theirs, strict=True):
        # At the length limit ours must end, and CTranslate2 truncates.
        if max(len(mine.tokens), len(other.hypotheses[0])) >= MOST:
            continue
        compared += 1
        assert vocabulary.pieces(mine.tokens) == other.hypotheses[0]
        assert mine.log_probability == pytest.approx(other.scores[0], abs=1e-3)
    assert compared > LINES // 2


@pytest.mark.parametrize("token", [PAD, BEGIN, UNKNOWN])
def test_with_our_options_a_likely_token_that_is_no_text_never_comes(
    token: int, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = inclined(random_model(vocabulary), token)
    translator = exported(model, vocabulary, tmp_path)
    source = tokens(vocabulary)[0][0]
    (piece,) = vocabulary.pieces([token])
    (plain,) = translator.translate_batch([vocabulary.pieces(source)], beam_size=1)
    assert piece in plain.hypotheses[0]
    ((pieces, score),) = greedy(translator, vocabulary, [source])
    expected, total = likeliest(model, source)
    assert pieces == vocabulary.pieces(expected)
    assert score == pytest.approx(total, abs=10 * CLOSE)  # a sum of many


def test_with_our_options_a_translation_may_be_empty(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    translator = exported(inclined(random_model(vocabulary), END), vocabulary, tmp_path)
    ((pieces, score),) = greedy(translator, vocabulary, tokens(vocabulary)[0][:1])
    assert pieces == []
    assert score < 0


def inclined(model: Transformer, token: int) -> Transformer:
    """The model with one token much likelier than it was, wherever it stands."""
    bias = model.decoder[-1].around_feed_forward.norm.bias
    with torch.no_grad():
        bias.add_(model.embedding.weight[token], alpha=3)
    return model


def test_with_our_options_no_source_is_cut(vocabulary: Vocabulary, tmp_path: Path) -> None:
    model = random_model(vocabulary)
    source = torch.randint(4, vocabulary.size, (1100,), generator=torch.Generator().manual_seed(5))
    translator = exported(model, vocabulary, tmp_path)
    ((pieces, score),) = greedy(translator, vocabulary, [source.tolist()])
    expected, total = likeliest(model, source.tolist())
    assert pieces == vocabulary.pieces(expected)
    assert score == pytest.approx(total, abs=10 * CLOSE)


@pytest.mark.parametrize("sinusoids", [True, False])
def test_without_relative_positions_a_sentence_beyond_the_table_is_refused_not_guessed(
    sinusoids: bool, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = random_model(vocabulary, max_distance=None, sinusoids=sinusoids)
    translator = exported(model, vocabulary, tmp_path)
    source = vocabulary.pieces([300]) * POSITIONS  # and its end
    with pytest.raises(RuntimeError, match=f"No position encodings .* >= {POSITIONS}"):
        translator.score_batch([source], [source[:1]], max_input_length=0)


# The folder.


def test_the_folder_has_the_engine_s_files_and_what_turns_text_into_pieces(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    exported(random_model(vocabulary), vocabulary, tmp_path)
    out = tmp_path / "out"
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        *("model.bin", "config.json", "shared_vocabulary.json", "README.md"),
        *("tokenizer/vocabulary.model", "generation_config.json", MANIFEST),
    }
    assert Vocabulary.load(out).digest == vocabulary.digest
    pieces = json.loads((out / "shared_vocabulary.json").read_text(encoding="utf-8"))
    assert pieces == vocabulary.pieces(range(vocabulary.size))
    generation = (tmp_path / "model" / "generation_config.json").read_bytes()
    assert (out / "generation_config.json").read_bytes() == generation
    config = json.loads((out / "config.json").read_text())
    assert config["layer_norm_epsilon"] == torch.nn.LayerNorm(1).eps


def test_the_embeddings_are_stored_once(vocabulary: Vocabulary, tmp_path: Path) -> None:
    model = random_model(vocabulary)
    exported(model, vocabulary, tmp_path)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size = (tmp_path / "out" / "model.bin").stat().st_size
    assert 4 * parameters < size < 4 * (parameters + model.embedding.weight.numel() // 2)


# Refusals.


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"tables": "head"}, ("model.tables", "layer", "shared", "CTranslate2", "head", 3)),
        ({"sinusoids": True}, ("model.sinusoids", "false", "CTranslate2", "max_distance", "none")),
    ],
)
def test_a_model_that_ctranslate2_cannot_compute_is_refused(
    changes: dict[str, Any], facts: tuple[object, ...], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    folder = write(random_model(vocabulary, **changes), vocabulary, tmp_path / "model")
    with raises(SettingError, folder, *facts):
        export(folder, tmp_path / "out")
    assert left(tmp_path) == {"model"}


def test_without_relative_positions_the_kind_of_table_does_not_matter(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = random_model(vocabulary, max_distance=None, tables="head")
    exported(model, vocabulary, tmp_path)


def test_a_missing_package_is_told_with_its_extra(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(random_model(vocabulary), vocabulary, tmp_path / "model")
    monkeypatch.setattr(interop, "find_spec", lambda name: None)
    with raises(EdgewiseError, "ctranslate2", "edgewise[export]"):
        export(folder, tmp_path / "out")


def test_what_is_there_is_replaced_only_on_request_and_only_if_it_is_an_export(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    folder = write(random_model(vocabulary), vocabulary, tmp_path / "model")
    export(folder, tmp_path / "out")
    first = (tmp_path / "out" / "model.bin").read_bytes()
    other = write(random_model(vocabulary, norm="pre"), vocabulary, tmp_path / "other")
    with raises(SettingError, tmp_path / "out", "--overwrite"):
        export(other, tmp_path / "out")
    assert (tmp_path / "out" / "model.bin").read_bytes() == first
    export(other, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "model.bin").read_bytes() != first
    with raises(SettingError, folder, "CTranslate2", "--overwrite", "--out"):
        export(other, folder, overwrite=True)
    assert left(tmp_path) == {"model", "other", "out"}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [flip, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "generation_config.json"])
def test_a_damaged_model_folder_is_told_by_the_file(
    name: str, damage: Callable[[Path], None], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    folder = write(random_model(vocabulary), vocabulary, tmp_path / "model")
    damage(folder / name)
    with raises(DataError, name):
        export(folder, tmp_path / "out")
    assert left(tmp_path) == {"model"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_export_leaves_what_was_there(
    overwrite: bool, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(random_model(vocabulary), vocabulary, tmp_path / "model")
    before = {"model"}
    if overwrite:
        export(folder, tmp_path / "out")
        before.add("out")

    def interrupted(self: TransformerSpec, folder: str) -> None:
        Path(folder, "model.bin").write_bytes(b"the beginning")
        raise KeyboardInterrupt

    monkeypatch.setattr(TransformerSpec, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(folder, tmp_path / "out", overwrite=overwrite)
    assert left(tmp_path) == before
    if overwrite:
        assert (tmp_path / "out" / "model.bin").stat().st_size > 1000


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
