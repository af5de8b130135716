"""The vocabulary of a model from elsewhere: sentencepiece cuts, a list says which token is which.

Source and target may be cut by two models. Each piece is one token for both, and may be unknown to
one of them. Such models normalise text: what comes back need not be what was given.
"""

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from edgewise.data.vocabulary import BEGIN, PAD, UNKNOWN, load_processor
from edgewise.errors import DataError
from edgewise.settings import describe_mistakes, show
from edgewise.storage import SealedFolder, write_json

PIECES = "pieces.json"
_SIDES = "source", "target"
_CODE = re.compile(r">>[^<>]+<<")
_SPACE = "\u2581"


class _Pieces(BaseModel):
    """The content of pieces.json; tokens are numbers of pieces."""

    model_config = ConfigDict(strict=True)

    pieces: list[str]
    source_only: list[int]
    target_only: list[int]

    @model_validator(mode="after")
    def _consistent(self) -> "_Pieces":
        for name, tokens in (("source_only", self.source_only), ("target_only", self.target_only)):
            if tokens and not 0 <= min(tokens) <= max(tokens) < len(self.pieces):
                raise ValueError(
                    f"{name} must have tokens from 0 to {len(self.pieces) - 1}, as there are "
                    f"{len(self.pieces)} pieces; got {show(tokens)}"
                )
        return self


class ImportedVocabulary:
    """Pieces in the order of their tokens, the first four PAD, BEGIN, END and UNKNOWN."""

    def __init__(
        self,
        source: bytes,
        target: bytes,
        pieces: Sequence[str],
        *,
        source_only: Collection[int] = (),
        target_only: Collection[int] = (),
        name: str = "the vocabulary",
    ) -> None:
        """source, target: sentencepiece models; source_only: tokens no translation has."""
        self._models = source, target
        self._pieces = list(pieces)
        self.source_only, self.target_only = frozenset(source_only), frozenset(target_only)
        if len(self._pieces) <= UNKNOWN + 1 or len(set(self._pieces)) < len(self._pieces):
            raise DataError(f"{name} must have more than four pieces, no two of them alike")
        self._source = load_processor(source, f"source.model of {name}")
        self._target = load_processor(target, f"target.model of {name}")
        numbers = {piece: i for i, piece in enumerate(self._pieces) if i > UNKNOWN}
        self._source_numbers, self._target_numbers = (
            {piece: i for piece, i in numbers.items() if i not in others}
            for others in (self.target_only, self.source_only)
        )
        # A language to translate to, as >>fra<<, stands before the text and is no text itself.
        self._has_codes = any(_CODE.fullmatch(piece) for piece in self._source_numbers)

    @classmethod
    def load(cls, folder: SealedFolder, inside: str) -> "ImportedVocabulary":
        """Read what `write` wrote to the folder `inside` of a sealed one."""
        path = folder.path / inside
        try:
            content = _Pieces.model_validate(folder.json(f"{inside}/{PIECES}"))
        except ValidationError as error:
            raise DataError(f"{path / PIECES}: {describe_mistakes(error)}") from None
        source, target = (folder.read(f"{inside}/{side}.model") for side in _SIDES)
        return cls(
            *(source, target, content.pieces),
            source_only=content.source_only,
            target_only=content.target_only,
            name=str(path),
        )

    def write(self, folder: Path) -> None:
        """Write its files into a folder."""
        for side, model in zip(_SIDES, self._models, strict=True):
            (folder / f"{side}.model").write_bytes(model)
        write_json(folder / PIECES, self._content())

    @property
    def size(self) -> int:
        return len(self._pieces)

    @cached_property
    def digest(self) -> str:
        """sha256 of all that decides: equal vocabularies have equal digests."""
        digest = hashlib.sha256(json.dumps(self._content()).encode())
        for model in self._models:
            digest.update(hashlib.sha256(model).digest())
        return digest.hexdigest()

    @cached_property
    def excluded(self) -> list[int]:
        """What a translation never has: tokens that are no text, and what would end a line."""
        every = enumerate(self._pieces)
        ending = {i for i, piece in every if "\n" in piece or piece == "<0x0A>"}
        return sorted({PAD, BEGIN, UNKNOWN} | ending | self.source_only)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The tokens of each line of the source, without begin or end."""
        cut = map(self._cut, lines)
        return [[self._source_numbers.get(piece, UNKNOWN) for piece in pieces] for pieces in cut]

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """The same of translations."""
        cut = (self._target.encode(line, out_type=str) for line in lines)
        return [[self._target_numbers.get(piece, UNKNOWN) for piece in pieces] for pieces in cut]

    def _cut(self, line: str) -> list[str]:
        code = _CODE.match(line) if self._has_codes else None
        if code is None:
            return list(self._source.encode(line, out_type=str))
        return [code[0], *self._source.encode(line[code.end() :], out_type=str)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; begin, end, padding and what is unknown are nothing."""
        pieces = self.pieces([token for token in tokens if token > UNKNOWN])
        # A piece that the sentencepiece model does not have stays as it is written.
        return str(self._target.decode_pieces(pieces)).replace(_SPACE, " ").strip()

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """How each token is written."""
        return [self._pieces[int(token)] for token in tokens]

    def _content(self) -> dict[str, list[str] | list[int]]:
        return {
            "pieces": self._pieces,
            "source_only": sorted(self.source_only),
            "target_only": sorted(self.target_only),
        }
