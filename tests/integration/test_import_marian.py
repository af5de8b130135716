"""MarianMT folders, imported: logits, tokens and translations are those of transformers."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import D_MODEL, ENGLISH, GERMAN, hostile, marian_folder
from messages import assert_mentions, raises
from safetensors.torch import load_file, save_file
from selection import long_except

from edgewise.checkpoint.model_folder import load_model, model_languages, read_model
from edgewise.data.vocabulary import BEGIN, END, PAD, UNKNOWN
from edgewise.decoding import Translator
from edgewise.errors import DataError, SettingError
from edgewise.interop.marian import import_marian
from edgewise.model.settings import ModelSettings
from edgewise.storage import read_json

LINES = 60
MOST = 40  # tokens of a translation
# In float32; the largest difference of these was 1.4e-5.
CLOSE = 1e-4

KINDS: dict[str, dict[str, Any]] = {
    "one matrix": {},
    "each its own, relu": {"tie_word_embeddings": False, "activation_function": "relu"},
    "two vocabularies": {"two": True},
    "two vocabularies, each its own, started with a word": {
        **{"two": True, "tie_word_embeddings": False, "decoder_start_token_id": 7},
        "activation_function": "gelu",
    },
    "without the factor, pickled, with rows that have no piece": {
        **{"scale_embedding": False, "pickled": True, "unnamed": 3, "activation_function": "silu"},
    },
}
OFTEN = [name for name in KINDS if name not in ("each its own, relu", "two vocabularies")]

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Imported:
    """A model folder, and the model and the tokenizer that it was made of."""

    folder: Path
    model: Any
    tokenizer: Any

    @property
    def rows(self) -> list[int]:
        """Our token of each row of the output."""
        vocabulary = read_model(self.folder)[2]
        tokens = {piece: i for i, piece in enumerate(vocabulary.pieces(range(vocabulary.size)))}
        return [
            tokens[self.tokenizer.decoder.get(row, f"<row {row}>")]
            for row in range(self.model.final_logits_bias.shape[1])
        ]


@pytest.fixture(scope="module", params=long_except(OFTEN, KINDS))
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder = tmp_path_factory.mktemp("marian")
    model, tokenizer = marian_folder(folder, updates=65, **KINDS[request.param])
    import_marian(folder / "model", folder / "out")
    return Imported(folder / "out", model, tokenizer)


# The same numbers.


@torch.inference_mode()
def test_logits_are_those_of_transformers(imported: Imported) -> None:
    batch = imported.tokenizer(ENGLISH[:15], return_tensors="pt", padding=True)
    targets = imported.tokenizer(text_target=GERMAN[:15], return_tensors="pt", padding=True)
    begin = torch.full((15, 1), imported.model.config.decoder_start_token_id)
    before = torch.cat((begin, targets["input_ids"][:, :-1]), dim=1)
    expected = imported.model(**batch, decoder_input_ids=before).logits
    model, vocabulary = load_model(imported.folder)
    source = padded([[*tokens, END] for tokens in vocabulary.encode(ENGLISH[:15])])
    target = padded([[BEGIN, *tokens] for tokens in vocabulary.encode_target(GERMAN[:15])])
    assert source.shape == batch["input_ids"].shape and (source == PAD).any()
    logits = model(source, source != PAD, target)
    is_token = target != PAD
    rows = torch.tensor(imported.rows)
    torch.testing.assert_close(logits[..., rows][is_token], expected[is_token], atol=CLOSE, rtol=0)
    # No token but its own takes part in the softmax.
    torch.testing.assert_close(
        logits.log_softmax(-1)[..., rows][is_token],
        expected.log_softmax(-1)[is_token],
        atol=CLOSE,
        rtol=0,
    )


def translated(imported: Imported, beam: int) -> tuple[list[str], list[str], list[bool]]:
    """Ours, theirs, and which of theirs end before the limit."""
    batch = imported.tokenizer(ENGLISH[:LINES], return_tensors="pt", padding=True)
    found = imported.model.generate(
        **batch,
        num_beams=beam,
        length_penalty=0.0,
        max_length=MOST + 2,  # which counts the start and the end
        do_sample=False,
        # What ours never says: what is no text, and rows that have no piece.
        bad_words_ids=[[row] for row in unsaid(imported)],
    )[:, 1:]
    theirs = imported.tokenizer.batch_decode(found, skip_special_tokens=True)
    translator = Translator.load(imported.folder)
    ours = translator.translate(ENGLISH[:LINES], beam=beam, length_penalty=0.0, max_length=MOST)
    return ours, theirs, [bool((row[:MOST] == 0).any()) for row in found]


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_those_of_transformers(beam: int, imported: Imported) -> None:
    ours, theirs, whole = translated(imported, beam)
    # At the limit ours must end, and that has its probability; theirs is cut off.
    assert [text for text, is_whole in zip(ours, whole, strict=True) if is_whole or beam == 1] == [
        text for text, is_whole in zip(theirs, whole, strict=True) if is_whole or beam == 1
    ]
    assert sum(whole) > LINES // 4
    assert len(set(ours)) > LINES // 3


def test_random_weights_give_the_same_logits_and_translations(tmp_path: Path) -> None:
    model, tokenizer = marian_folder(tmp_path)
    model.final_logits_bias[0, 0] += 4.5  # so that many translations end, and not at once
    model.save_pretrained(tmp_path / "model")
    import_marian(tmp_path / "model", tmp_path / "out")
    imported = Imported(tmp_path / "out", model, tokenizer)
    test_logits_are_those_of_transformers(imported)
    ours, theirs, _ = translated(imported, beam=1)
    assert ours == theirs
    ours, theirs, whole = translated(imported, beam=4)
    ended = [i for i, is_whole in enumerate(whole) if is_whole]
    assert [ours[i] for i in ended] == [theirs[i] for i in ended]
    assert len(ended) > LINES // 3
    assert len({ours[i] for i in ended}) > 3


def unsaid(imported: Imported) -> list[int]:
    excluded = set(read_model(imported.folder)[2].excluded)
    return [row for row, token in enumerate(imported.rows) if token in excluded]


@pytest.mark.parametrize(
    ("codes", "two"), [((), False), ((), True), ((">>fra<<", ">>deu<<"), False)]
)
def test_text_is_cut_as_by_transformers(codes: tuple[str, ...], two: bool, tmp_path: Path) -> None:
    _, tokenizer = marian_folder(tmp_path, two=two, codes=codes)
    import_marian(tmp_path / "model", tmp_path / "out")
    vocabulary = read_model(tmp_path / "out")[2]
    odd = ["x\u03a9y \U0001f600 z", "  two   spaces ", "\uff21\u00bd", "'' -- ...", "", "q<unk"]
    texts = [*ENGLISH[:40], *odd]
    if codes:
        texts += [f"{code} The old man." for code in (*codes, ">>none<<")] + [">>fra<<Now >>deu<<"]
    cut = vocabulary.encode(texts)
    theirs = tokenizer(texts)["input_ids"]
    assert UNKNOWN in {token for tokens in cut for token in tokens}
    assert [vocabulary.pieces([*tokens, END]) for tokens in cut] == [
        [piece_of(row, tokenizer.encoder) for row in rows] for rows in theirs
    ]
    texts = [*GERMAN[:40], *odd]
    rows_of_target = tokenizer(text_target=texts)["input_ids"]
    numbers = tokenizer.target_encoder if two else tokenizer.encoder
    assert [vocabulary.pieces([*tokens, END]) for tokens in vocabulary.encode_target(texts)] == [
        [piece_of(row, numbers) for row in rows] for rows in rows_of_target
    ]


def piece_of(row: int, numbers: dict[str, int]) -> str:
    return next(piece for piece, number in numbers.items() if number == row)


def padded(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


# What is written.


@pytest.fixture(scope="module")
def random_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    marian_folder(folder)
    return folder / "model"


@pytest.fixture
def marian(random_folder: Path, tmp_path: Path) -> Path:
    """A MarianMT folder to be changed."""
    return Path(shutil.copytree(random_folder, tmp_path / "model"))


def change_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not Ellipsis}))


def test_settings_and_languages_are_the_folder_s(marian: Path, tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "out")
    model, vocabulary = load_model(tmp_path / "out")
    assert model.settings == ModelSettings(
        **{"encoder_layers": 2, "decoder_layers": 3, "d_model": 24, "heads": 3, "d_ff": 40},
        **{"max_distance": None, "sinusoids": True, "activation": "swish", "bias": True},
    )
    assert vocabulary.pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert model_languages(tmp_path / "out") == ("en", "de")
    assert "model, a MarianMT model" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("named", [{"source_lang": "eng_Latn"}, {"target_lang": None}])
def test_languages_that_are_not_known_are_not_named(
    named: dict[str, Any], marian: Path, tmp_path: Path
) -> None:
    change_json(marian / "tokenizer_config.json", **named)
    import_marian(marian, tmp_path / "out")
    assert model_languages(tmp_path / "out") is None


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_it_is_used_as_the_folder_asks(name: str, marian: Path, tmp_path: Path) -> None:
    (marian / "generation_config.json").unlink()
    (marian / name).touch()
    if name != "config.json":
        (marian / name).write_text("{}")
    change_json(marian / name, num_beams=6, length_penalty=0.8, max_length=52)
    import_marian(marian, tmp_path / "out")
    settings = Translator.load(tmp_path / "out").settings
    assert (settings.beam, settings.length_penalty, settings.max_length) == (6, 0.8, 50)


def test_a_folder_that_asks_for_nothing_is_searched_greedily(marian: Path, tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "out")
    settings = Translator.load(tmp_path / "out").settings
    assert (settings.beam, settings.length_penalty, settings.max_length) == (1, 1.0, None)


def test_a_matrix_may_be_stored_by_any_of_its_names(marian: Path, tmp_path: Path) -> None:
    tensors = load_file(marian / "model.safetensors")
    assert "model.shared.weight" in tensors
    import_marian(marian, tmp_path / "out")
    expected = (tmp_path / "out" / "model.safetensors").read_bytes()
    for name in ("lm_head.weight", "model.encoder.embed_tokens.weight"):
        renamed = dict(tensors)
        renamed[name] = renamed.pop("model.shared.weight")
        save_file(renamed, marian / "model.safetensors")
        import_marian(marian, tmp_path / "out", overwrite=True)
        assert (tmp_path / "out" / "model.safetensors").read_bytes() == expected


def test_positions_beyond_the_longest_there_go_on(marian: Path, tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "out")
    translator = Translator.load(tmp_path / "out")
    text = " ".join(["old"] * 300)
    (tokens,) = translator.vocabulary.encode([text])
    assert len(tokens) > read_json(marian / "config.json")["max_position_embeddings"]
    short, long = (translator.score([each], ["der"])[0] for each in ("old", text))
    assert long.log_probability != short.log_probability


def test_what_is_there_is_replaced_only_on_request(marian: Path, tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "out")
    with raises(SettingError, tmp_path / "out", "--overwrite"):
        import_marian(marian, tmp_path / "out")
    import_marian(marian, tmp_path / "out", overwrite=True)
    with raises(SettingError, marian, "--overwrite", "--out"):
        import_marian(tmp_path / "out", marian, overwrite=True)


# Refusals.


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "config.json", **changes)


def generation(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "generation_config.json", **changes)


def tokenizer(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "tokenizer_config.json", **changes)


def vocab(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "vocab.json", **changes)


def content(name: str, data: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(data)


def missing(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def weights(name: str, tensor: torch.Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors.pop(name, None)
        save_file(
            tensors | ({} if tensor is None else {name: tensor}), folder / "model.safetensors"
        )

    return change


FIRST = "model.decoder.layers.2.fc1.weight"
POSITIONS = "model.encoder.embed_positions.weight"
REFUSED: list[tuple[Callable[[Path], Any], tuple[object, ...]]] = [
    (missing("config.json"), ("MarianMT", "config.json")),
    (config(model_type="bart"), ("config.json", "model_type", "marian", "bart")),
    (config(model_type=...), ("config.json", "model_type", "marian", "none")),
    (content("config.json", b"{"), ("config.json", "JSON")),
    (content("config.json", b"[]"), ("config.json", "[]")),
    (missing("source.spm"), ("MarianMT", "source.spm")),
    (missing("target.spm"), ("MarianMT", "target.spm")),
    (content("source.spm", b"text"), ("source.spm", "damaged")),
    (content("target.spm", b""), ("target.spm", "damaged")),
    (missing("vocab.json"), ("MarianMT", "vocab.json")),
    (content("vocab.json", b"a b"), ("vocab.json", "JSON")),
    (content("vocab.json", b'["a"]'), ("vocab.json", "piece")),
    (content("vocab.json", b'{"a": "b"}'), ("vocab.json", "piece")),
    (vocab(more=99999), ("vocab.json", "more", 99999)),
    (vocab(more=5), ("vocab.json", "more", 5)),
    (vocab(**{"<unk>": ...}), ("vocab.json", "source", "<unk>")),
    (vocab(**{"</s>": ...}), ("vocab.json", "source", "</s>")),
    (
        lambda folder: [missing("model.safetensors")(folder)],
        ("MarianMT", "model.safetensors", "pytorch_model.bin"),
    ),
    (content("model.safetensors", b"text"), ("model.safetensors", "damaged")),
    (weights(FIRST, torch.ones(41, D_MODEL)), (FIRST, "[40, 24]", "[41, 24]")),
    (weights(FIRST, None), ("model.safetensors", FIRST)),
    (
        weights("model.shared.weight", None),
        ("model.safetensors", "model.encoder.embed_tokens.weight"),
    ),
    (weights("model.shared.weight", torch.ones(7, D_MODEL)), ("config.json", "vocab_size", 7)),
    (weights("lm_head.weight", torch.ones(7, D_MODEL)), ("lm_head.weight", "[7, 24]")),
    (weights(FIRST.replace("weight", "bias"), None), ("model.decoder.layers.2.fc1.bias",)),
    (weights("final_logits_bias", torch.ones(1, 7)), ("final_logits_bias", "[1, 7]")),
    (weights("extra.weight", torch.ones(7)), ("model.safetensors", "extra.weight")),
    (weights("one", torch.ones(7, dtype=torch.int32)), ("one", "torch.int32")),
    (weights(POSITIONS, torch.ones(9, D_MODEL)), (POSITIONS, "sinusoids")),
    (
        config(activation_function="gelu_new"),
        ("activation_function", "relu", "gelu", "swish", "silu", "gelu_new"),
    ),
    (
        config(decoder_attention_heads=6),
        ("decoder_attention_heads", "encoder_attention_heads", 3, 6),
    ),
    (config(decoder_ffn_dim=41), ("decoder_ffn_dim", "encoder_ffn_dim", 40, 41)),
    (config(encoder_layers=3), ("config.json", "encoder_layers", 2, 3)),
    (config(decoder_layers=...), ("config.json", "decoder_layers", 3, 12)),
    (config(vocab_size=10**12), ("config.json", "vocab_size", 10**12)),
    (config(encoder_ffn_dim=41, decoder_ffn_dim=41), ("config.json", "encoder_ffn_dim", 40, 41)),
    (
        config(share_encoder_decoder_embeddings=False, decoder_vocab_size=9),
        ("model.safetensors", "model.encoder.embed_tokens.weight"),
    ),
    (
        config(encoder_attention_heads=5, decoder_attention_heads=5),
        ("d_model", "heads", 24, 5),
    ),
    (config(tie_word_embeddings=False), ("model.safetensors", "lm_head.weight")),
    (config(scale_embedding="yes"), ("config.json", "scale_embedding", "yes")),
    (config(d_model=23), ("config.json", "d_model", 24, 23)),
    (generation(eos_token_id=1), ("eos_token_id", "</s>", 0, 1)),
    (generation(eos_token_id=[0, 2]), ("eos_token_id", "</s>", 0, "[0, 2]")),
    (generation(decoder_start_token_id=-1), ("decoder_start_token_id", -1)),
    (generation(no_repeat_ngram_size=3), ("no_repeat_ngram_size", 0, 3)),
    (generation(repetition_penalty=1.2), ("repetition_penalty", 1.0, 1.2)),
    (generation(do_sample=True), ("do_sample", False, True)),
    (generation(forced_bos_token_id=7), ("forced_bos_token_id", 7)),
    (generation(bad_words_ids=[[7]]), ("bad_words_ids", "[[7]]")),
    (generation(bad_words_ids=7), ("bad_words_ids", 7)),
    (generation(num_beams=1000), ("generation_config.json", "beam", 1000)),
    (generation(max_length=2), ("generation_config.json", "max_length", 0)),
    (generation(length_penalty="much"), ("length_penalty", "much")),
    (tokenizer(sp_model_kwargs={"nbest_size": 4}), ("sp_model_kwargs", "{'nbest_size': 4}")),
    (tokenizer(separate_vocabs=True), ("MarianMT", "target_vocab.json")),
    (tokenizer(pad_token={"content": "</s>"}), ("vocab.json", "padding", "</s>", "<unk>")),
    (tokenizer(eos_token=7), ("tokenizer_config.json", "eos_token", 7)),
    (
        tokenizer(added_tokens_decoder={"900": {"content": "<new>"}}),
        ("added_tokens_decoder", "vocab.json", "<new>"),
    ),
    (content("added_tokens.json", b'{"<new>": 900}'), ("vocab.json", "<new>")),
]


@pytest.mark.parametrize(("change", "facts"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(
    change: Callable[[Path], None], facts: tuple[object, ...], marian: Path, tmp_path: Path
) -> None:
    change(marian)
    with raises(DataError, marian) as caught:
        import_marian(marian, tmp_path / "out")
    assert_mentions(str(caught.value).replace(str(marian), ""), *facts)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with raises(SettingError, tmp_path / "none", "MarianMT"):
        import_marian(tmp_path / "none", tmp_path / "out")


@pytest.mark.parametrize("way", ["os.system", "eval"])
def test_nothing_of_hostile_weights_is_run(way: str, marian: Path, tmp_path: Path) -> None:
    (marian / "model.safetensors").unlink()
    file = marian / "pytorch_model.bin"
    torch.save({"model.shared.weight": hostile(way, tmp_path / "marker")}, file)
    with raises(DataError, file, way.replace("os.", "posix.")):
        import_marian(marian, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    torch.load(file, weights_only=False)  # which shows that it would have
    assert (tmp_path / "marker").exists()
