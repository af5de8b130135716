"""Vocabularies of models from elsewhere."""

import io
from pathlib import Path

import pytest
import sentencepiece
from messages import raises

from edgewise.data.imported_vocabulary import ImportedVocabulary
from edgewise.data.tokenizer import Tokenizer, load_tokenizer
from edgewise.data.vocabulary import UNKNOWN, Vocabulary
from edgewise.errors import DataError
from edgewise.storage import MANIFEST, SealedFolder, open_sealed, seal

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
LINES = ["the old man sleeps .", "a man reads the old book .", "old books sleep ."] * 3


def spm(lines: list[str] = LINES, size: int = 40) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]


def test_text_is_cut_by_sentencepiece_and_numbered_by_the_list() -> None:
    model = spm()
    pieces = [*SPECIAL, *reversed(pieces_of(model))]
    vocabulary = ImportedVocabulary(model, model, pieces)
    (tokens,) = vocabulary.encode(["the old man"])
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert vocabulary.pieces(tokens) == processor.encode("the old man", out_type=str)
    assert [pieces[token] for token in tokens] == vocabulary.pieces(tokens)
    assert vocabulary.decode(tokens) == "the old man"
    assert vocabulary.decode([0, 1, *tokens, 3, 2]) == "the old man"


def test_source_and_target_may_be_cut_by_two_models() -> None:
    models = spm(), spm(["der alte Mann schläft .", "alte Bücher schlafen ."] * 3, 50)
    known = dict.fromkeys(piece for model in models for piece in pieces_of(model))
    vocabulary = ImportedVocabulary(*models, [*SPECIAL, *known])
    processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models]
    text = "alte man"
    for found, processor in zip(
        (vocabulary.encode([text]), vocabulary.encode_target([text])), processors, strict=True
    ):
        cut = processor.encode(text, out_type=str)
        assert vocabulary.pieces(found[0]) == [p if p in known else "<unk>" for p in cut]


def test_a_piece_of_one_side_is_unknown_to_the_other() -> None:
    model = spm()
    pieces = [*SPECIAL, *pieces_of(model)]
    (full,) = ImportedVocabulary(model, model, pieces).encode(["the old man"])
    other = ImportedVocabulary(model, model, pieces, source_only=full[:1], target_only=full[-1:])
    assert other.encode(["the old man"]) == [[*full[:-1], UNKNOWN]]
    assert other.encode_target(["the old man"]) == [[UNKNOWN, *full[1:]]]
    assert set(other.excluded) == {0, 1, 3, full[0]}


def test_what_would_end_a_line_is_never_of_a_translation() -> None:
    model = spm()
    vocabulary = ImportedVocabulary(model, model, [*SPECIAL, "a", "<0x0A>", "b\n", "c"])
    assert vocabulary.excluded == [0, 1, 3, 5, 6]


def test_a_language_before_the_text_is_one_token() -> None:
    model = spm()
    plain = [*SPECIAL, *pieces_of(model)]
    vocabulary = ImportedVocabulary(model, model, [*plain, ">>fra<<"])
    (text,) = vocabulary.encode(["the old man"])
    assert vocabulary.encode([">>fra<< the old man"]) == [[len(plain), *text]]
    assert vocabulary.encode([">>deu<< the old man"]) == [[UNKNOWN, *text]]
    # Without such tokens it is text.
    (found,) = ImportedVocabulary(model, model, plain).encode([">>fra<< the old man"])
    assert len(found) > len(text) + 1


def sealed(folder: Path) -> SealedFolder:
    (folder / MANIFEST).unlink(missing_ok=True)
    seal(folder, "model", 1)
    return open_sealed(folder, "model", 1)


def test_it_survives_its_folder(tmp_path: Path) -> None:
    model = spm()
    vocabulary = ImportedVocabulary(model, model, [*SPECIAL, *pieces_of(model)], source_only=[5])
    (tmp_path / "tokenizer").mkdir()
    vocabulary.write(tmp_path / "tokenizer")
    again = load_tokenizer(sealed(tmp_path))
    assert isinstance(again, ImportedVocabulary) and isinstance(again, Tokenizer)
    assert again.digest == vocabulary.digest and again.excluded == vocabulary.excluded
    assert again.encode(LINES) == vocabulary.encode(LINES)
    other = ImportedVocabulary(model, model, [*SPECIAL, *pieces_of(model)])
    assert other.digest != vocabulary.digest


def test_ours_is_a_tokenizer_too() -> None:
    assert isinstance(Vocabulary.train(LINES * 20, 320), Tokenizer)


@pytest.mark.parametrize("pieces", [[*SPECIAL, "a", "a"], SPECIAL])
def test_lists_that_are_none_are_refused(pieces: list[str]) -> None:
    model = spm()
    with raises(DataError, "vocabulary", "pieces"):
        ImportedVocabulary(model, model, pieces)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ("[]", ("table", "[]")),
        ("null", ("table", "None")),
        ('{"pieces": []}', ("source_only", "target_only", "set")),
        ('{"pieces": 3, "source_only": [], "target_only": []}', ("pieces", "list", 3)),
        ('{"pieces": "abcdefgh", "source_only": [], "target_only": []}', ("pieces", "list")),
        ('{"pieces": [1], "source_only": [], "target_only": []}', ("pieces.0", "string", 1)),
        ('{"pieces": ["a"], "source_only": [1e400], "target_only": []}', ("source_only.0", "inf")),
        ('{"pieces": ["a"], "source_only": [], "target_only": [0.0]}', ("target_only.0", "0.0")),
        ('{"pieces": ["a"], "source_only": [true], "target_only": []}', ("source_only.0", "True")),
        ('{"pieces": ["a"], "source_only": ["0"], "target_only": []}', ("source_only.0", "'0'")),
        ('{"pieces": ["a"], "source_only": null, "target_only": []}', ("source_only", "None")),
        ('{"pieces": ["a"], "source_only": [1], "target_only": []}', ("source_only", 0, "[1]")),
        ('{"pieces": ["a"], "source_only": [], "target_only": [-1]}', ("target_only", "[-1]")),
        ('{"pieces": [], "source_only": [], "target_only": []}', ("four", "pieces")),
    ],
    ids=range(14),
)
def test_a_list_of_pieces_that_is_none_is_told_why(
    content: str, facts: tuple[object, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for side in ("source", "target"):
        (folder / f"{side}.model").write_bytes(spm())
    (folder / "pieces.json").write_text(content)
    with raises(DataError, folder, *facts) as error:
        load_tokenizer(sealed(tmp_path))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_a_missing_or_damaged_model_of_a_side_is_named(
    side: str, content: bytes | None, tmp_path: Path
) -> None:
    model, folder = spm(), tmp_path / "tokenizer"
    folder.mkdir()
    ImportedVocabulary(model, model, [*SPECIAL, *pieces_of(model)]).write(folder)
    (folder / f"{side}.model").unlink()
    if content is not None:
        (folder / f"{side}.model").write_bytes(content)
    with raises(DataError, tmp_path, f"{side}.model"):
        load_tokenizer(sealed(tmp_path))


def test_a_model_folder_without_a_tokenizer_is_damaged(tmp_path: Path) -> None:
    with raises(DataError, tmp_path, "tokenizer/vocabulary.model"):
        load_tokenizer(sealed(tmp_path))


def test_damaged_files_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    model = spm()
    ImportedVocabulary(model, model, [*SPECIAL, *pieces_of(model)]).write(folder)
    (folder / "target.model").write_bytes(b"no model")
    with raises(DataError, folder, "damaged"):
        load_tokenizer(sealed(tmp_path))
    (folder / "target.model").unlink()
    with raises(DataError, tmp_path, "tokenizer/target.model"):
        load_tokenizer(sealed(tmp_path))
    (folder / "pieces.json").write_text("[]")
    with raises(DataError, folder / "pieces.json"):
        load_tokenizer(sealed(tmp_path))
