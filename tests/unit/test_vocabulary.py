"""The vocabulary: any text comes back as it was; sizes and files that cannot be used."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from messages import raises

from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary
from edgewise.errors import DataError, SettingError

LINES = [line for pair in pairs(300) for line in pair]
STRANGE = [
    "",
    " ",
    "   ",
    " leading and trailing ",
    "two  spaces",
    "\u2581",
    "\u2581 \u2581\u2581one\u2581",
    "\uf8fe",
    "\uf8fe0",
    "\uf8fe1",
    "\uf8fe\u25811\uf8fe01\u25810",
    "\x00",
    "one\x00two",
    "\t",
    "one\ttwo\t",
    "\r",
    "\x0b\x0c\x1c\x85\xa0\u3000",
    "①",
    "ﬁ ½ Å e\u0301 é",
    "👩‍👩‍👧 🇩🇪 😀",
    "שלום עליכם",
    "\u202eright to left\u202c",
    "<s> </s> <unk> <0x41> <pad>",
    "<s>",
    " ⁇ \u2585 \u2047",
    "\u2028",
    "\ufeff",
    "\ufffd\uffff\U0010ffff",
]


def sentencepiece_model(size: int, **options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def learnt() -> Vocabulary:
    return Vocabulary.train(LINES, 500)


@pytest.fixture(scope="module")
def learnt_from_strange() -> Vocabulary:
    """The strange texts are pieces of it, not spelled in bytes only."""
    return Vocabulary.train([*LINES, *STRANGE * 9], 700)


@pytest.fixture(params=["learnt", "learnt_from_strange"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    found: Vocabulary = request.getfixturevalue(request.param)
    return found


def assert_comes_back(vocabulary: Vocabulary, line: str) -> None:
    (tokens,) = vocabulary.encode([line])
    assert vocabulary.decode(tokens) == line
    assert all(UNKNOWN < token < vocabulary.size for token in tokens)


@pytest.mark.parametrize("line", STRANGE)
def test_a_strange_text_comes_back_as_it_was(vocabulary: Vocabulary, line: str) -> None:
    assert_comes_back(vocabulary, line)


@given(line=st.text().map(lambda line: line.replace("\n", "")))
def test_any_text_comes_back_as_it_was(
    learnt: Vocabulary, learnt_from_strange: Vocabulary, line: str
) -> None:
    assert_comes_back(learnt, line)
    assert_comes_back(learnt_from_strange, line)


@given(line=st.text(alphabet=" \u2581\uf8fe01a<s>/\t\x00"))
def test_what_is_written_specially_comes_back_as_it_was(
    learnt: Vocabulary, learnt_from_strange: Vocabulary, line: str
) -> None:
    assert_comes_back(learnt, line)
    assert_comes_back(learnt_from_strange, line)


def test_frequent_words_are_pieces(learnt: Vocabulary) -> None:
    (tokens,) = learnt.encode(["the"])
    assert learnt.pieces(tokens) == ["\u2581the"]
    assert learnt.decode(tokens) == "the"


def test_lines_are_encoded_each_for_itself(learnt: Vocabulary) -> None:
    lines = [*LINES[:5], *STRANGE]
    assert learnt.encode(lines) == [learnt.encode([line])[0] for line in lines]
    assert learnt.encode([]) == []


def test_begin_end_and_padding_decode_to_nothing(learnt: Vocabulary) -> None:
    (tokens,) = learnt.encode([" one "])
    assert learnt.decode([BEGIN, *tokens, END, PAD, PAD]) == " one "
    assert learnt.decode([]) == ""


def test_special_pieces_have_the_first_numbers(vocabulary: Vocabulary) -> None:
    assert (PAD, BEGIN, END, UNKNOWN) == (0, 1, 2, 3)
    assert vocabulary.pieces(range(6)) == ["<pad>", "<s>", "</s>", "<unk>", "<0x00>", "<0x01>"]


def test_equal_texts_give_equal_vocabularies(learnt: Vocabulary) -> None:
    assert learnt.size == 500
    assert Vocabulary.train(LINES, 500).digest == learnt.digest
    assert Vocabulary.train(LINES[1:], 500).digest != learnt.digest
    assert Vocabulary.train(LINES, 501).digest != learnt.digest


def other_number(error: pytest.ExceptionInfo[BaseException], *known: int) -> int:
    """The one number in a message besides those that are known."""
    (found,) = {int(number) for number in re.findall(r"\d+", str(error.value))} - {*known}
    return found


def test_a_size_that_is_too_large_names_the_largest_which_then_works() -> None:
    with raises(SettingError, "--vocab-size", 30000) as error:
        Vocabulary.train(LINES, 30000)
    largest = other_number(error, 30000)
    assert Vocabulary.train(LINES, largest).size == largest
    with raises(SettingError, "--vocab-size", largest + 1, largest):
        Vocabulary.train(LINES, largest + 1)


@pytest.mark.parametrize("size", [1, 259, 270])
def test_a_size_that_is_too_small_names_the_least_which_then_works(size: int) -> None:
    with raises(SettingError, "--vocab-size", size, 256, 4) as error:
        Vocabulary.train(LINES, size)
    least = other_number(error, size, 256, 4)  # bytes, special pieces
    assert Vocabulary.train(LINES, least).size == least
    with raises(SettingError, "--vocab-size", least - 1, least):
        Vocabulary.train(LINES, least - 1)


@pytest.mark.parametrize("lines", [[], [""]])
def test_nothing_to_learn_from_is_said_in_our_words(lines: list[str]) -> None:
    with raises(DataError, "vocabulary", 300) as error:
        Vocabulary.train(lines, 300)
    assert "trainer_interface" not in str(error.value)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError, DataError])
def test_an_error_of_the_lines_is_raised_as_it_is(kind: type[BaseException]) -> None:
    def lines() -> Iterator[str]:
        yield from LINES
        raise kind("the disk is gone")

    with pytest.raises(kind, match=r"^the disk is gone$"):
        Vocabulary.train(lines(), 700)


def test_a_file_that_is_no_sentencepiece_model_is_refused(
    tmp_path: Path, learnt: Vocabulary
) -> None:
    path = tmp_path / "some.model"
    not_utf8 = learnt.model.replace(b"\xe2\x96\x81", b"\xff\x96\x81", 1)
    assert not_utf8 != learnt.model
    half = learnt.model[: len(learnt.model) // 2]
    for content in (b"no model", b"\x00" * 50, half, not_utf8, b""):
        path.write_bytes(content)
        with raises(DataError, path, "sentencepiece"):
            Vocabulary.load(path)


@pytest.mark.parametrize(
    ("options", "special"),
    [
        ({"byte_fallback": True}, [-1, 1, 2, 0]),
        (
            {"pad_id": 3, "bos_id": 1, "eos_id": 2, "unk_id": 0, "byte_fallback": True},
            [3, 1, 2, 0],
        ),
        ({"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}, [0, 1, 2, 3]),
    ],
    ids=["sentencepiece's own", "padding last", "no byte pieces"],
)
def test_a_sentencepiece_model_with_other_special_pieces_is_refused(
    options: dict[str, Any], special: list[int]
) -> None:
    with raises(DataError, "other.model", "pad", "begin", "end", "unknown", special):
        Vocabulary(sentencepiece_model(450, **options), "other.model")


def test_a_sentencepiece_model_that_loses_text_is_refused() -> None:
    # Its special pieces are ours, but it normalises: "①  x " would come back as "1 x".
    model = sentencepiece_model(
        450, pad_id=PAD, bos_id=BEGIN, eos_id=END, unk_id=UNKNOWN, byte_fallback=True
    )
    with raises(DataError, "other.model"):
        Vocabulary(model, "other.model")


@pytest.mark.parametrize("place", ["some.model", "vocabulary.model", "tokenizer/vocabulary.model"])
def test_a_vocabulary_is_loaded_from_its_file_or_its_folder(
    tmp_path: Path, learnt: Vocabulary, place: str
) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(learnt.model)
    assert Vocabulary.load(path).digest == learnt.digest
    if path.name == "vocabulary.model":
        assert Vocabulary.load(tmp_path).digest == learnt.digest


def test_a_place_without_a_vocabulary_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with raises(SettingError, "vocabulary", path):
            Vocabulary.load(path)
