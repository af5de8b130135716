"""What a model needs of a vocabulary, ours or another toolkit's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from edgewise.data.imported_vocabulary import PIECES, ImportedVocabulary
from edgewise.data.vocabulary import Vocabulary
from edgewise.storage import SealedFolder

TOKENIZER = "tokenizer"  # the folder in a model folder


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token numbers and back. The first four are PAD, BEGIN, END and UNKNOWN."""

    @property
    def size(self) -> int: ...

    @property
    def digest(self) -> str:
        """Equal vocabularies have equal digests."""

    @property
    def excluded(self) -> list[int]:
        """What a translation never has: tokens that are no text, and what would end a line."""

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The tokens of each line of the source, without begin or end."""

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """The same of translations."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a translation; begin, end and padding are nothing."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """How each token is written; no two are written alike."""

    def write(self, folder: Path) -> None:
        """Write its files into a folder that is there."""


def load_tokenizer(folder: SealedFolder) -> Tokenizer:
    """Return the vocabulary of a model folder, or of an exported one."""
    if f"{TOKENIZER}/{PIECES}" in folder:
        return ImportedVocabulary.load(folder, TOKENIZER)
    name = f"{TOKENIZER}/vocabulary.model"
    return Vocabulary(folder.read(name), str(folder.path / name))
