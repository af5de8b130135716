"""One vocabulary of subwords for both languages: sentencepiece without its losses."""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import sentencepiece

from edgewise.errors import DataError, SettingError
from edgewise.settings import one_line

PAD, BEGIN, END, UNKNOWN = range(4)
# sentencepiece writes a space as U+2581, so that a real U+2581 would come back as a space. It
# becomes a private character and a digit, as does that character itself.
_SPACE, _ESCAPE = "\u2581", "\uf8fe"


def load_processor(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    """Return the processor of a sentencepiece model; DataError if it is none, or damaged."""
    try:
        # Nothing would be taken for a model without pieces.
        processor = sentencepiece.SentencePieceProcessor(model_proto=model or b"none")
        processor.id_to_piece(list(range(processor.vocab_size())))  # each must be UTF-8
    except (RuntimeError, OSError, ValueError):
        raise DataError(f"{name} is not a sentencepiece model, or damaged") from None
    return processor


class Vocabulary:
    """Text to token numbers and back, without loss: `decode(encode(text)) == text`."""

    def __init__(self, model: bytes, name: str = "the vocabulary") -> None:
        self.model = model
        processor = self._processor = load_processor(model, name)
        special = [processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()]
        if special != [PAD, BEGIN, END, UNKNOWN] or processor.id_to_piece(4) != "<0x00>":
            raise DataError(
                f"{name} must have pad, begin, end and unknown as its pieces 0 to 3, then byte "
                f"pieces; it has them at {special} (edgewise prepare makes such vocabularies)"
            )
        probe = " \u2460  x "  # normalisation and removal of spaces would change it
        if self.decode(self.encode([probe])[0]) != probe:
            raise DataError(
                f"{name} must keep any text as it is; it normalises characters or spaces "
                "(edgewise prepare makes such vocabularies)"
            )

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """A vocabulary from its file, or from the folder of a prepared corpus or a model."""
        if path.is_dir():
            candidates = (path / "vocabulary.model", path / "tokenizer" / "vocabulary.model")
            path = next((file for file in candidates if file.is_file()), path)
        if not path.is_file():
            raise SettingError(f"there is no vocabulary at {path}")
        return cls(path.read_bytes(), str(path))

    @classmethod
    def train(cls, lines: Iterable[str], size: int) -> "Vocabulary":
        """Learn `size` pieces by byte-pair merges; what is rare is spelled in bytes."""
        model = io.BytesIO()
        failures: list[BaseException] = []  # of `lines`: sentencepiece makes them RuntimeErrors

        def escaped() -> Iterator[str]:
            try:
                yield from map(_escape, lines)
            except BaseException as error:
                if not isinstance(error, GeneratorExit):
                    failures.append(error)
                raise

        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=escaped(),
                model_writer=model,
                model_type="bpe",
                vocab_size=max(size, 260),  # which is too small as well, and told so
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                pad_id=PAD,
                bos_id=BEGIN,
                eos_id=END,
                unk_id=UNKNOWN,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise failures[0] if failures else _explained(str(error), size) from None
        return cls(model.getvalue())

    def write(self, folder: Path) -> None:
        """Write its file into a folder."""
        (folder / "vocabulary.model").write_bytes(self.model)

    @property
    def size(self) -> int:
        return int(self._processor.vocab_size())

    @cached_property
    def digest(self) -> str:
        """sha256 of the model: equal vocabularies have equal digests."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def newline(self) -> int:
        """The token of the byte that ends a line: no line has it."""
        return int(self._processor.piece_to_id("<0x0A>"))

    @property
    def excluded(self) -> list[int]:
        """What a translation never has: tokens that are no text, and what would end a line."""
        return [PAD, BEGIN, UNKNOWN, self.newline]

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The tokens of each line, without begin or end."""
        tokens: list[list[int]] = self._processor.encode(
            [_escape(line) for line in lines], num_threads=1
        )
        return tokens

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """The same of translations: both languages have one vocabulary."""
        return self.encode(lines)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; begin, end and padding are nothing."""
        text = self._processor.decode([int(token) for token in tokens if token > UNKNOWN])
        return _unescape(text)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """How each token is written, for pictures."""
        return [str(self._processor.id_to_piece(int(token))) for token in tokens]


def _escape(text: str) -> str:
    if _SPACE in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "0").replace(_SPACE, _ESCAPE + "1")
    return text


def _unescape(text: str) -> str:
    if _ESCAPE in text:
        return text.replace(_ESCAPE + "1", _SPACE).replace(_ESCAPE + "0", _ESCAPE)
    return text


def _explained(message: str, size: int) -> Exception:
    """sentencepiece's complaint about a size, in our words."""
    if largest := re.search(r"too high.*<= (\d+)", message):
        return SettingError(
            f"a vocabulary of {size} pieces is more than this corpus allows; --vocab-size may be "
            f"at most {largest[1]}"
        )
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return SettingError(
            f"--vocab-size {size} is too small: this corpus needs at least {least[1]} "
            "(256 bytes, 4 special pieces, its characters)"
        )
    if "sentences_.empty()" in message:
        return DataError(f"no vocabulary of {size} pieces can be learnt: no line can be used")
    reason = one_line(re.sub(r"^\w+: \S+\(\d+\) ", "", message))
    return DataError(f"no vocabulary of {size} pieces can be learnt from this corpus: {reason}")
