"""A prepared corpus: pairs of token sequences in memory-mapped files, of any size."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, InstanceOf, ValidationError

from edgewise.data.languages import language_of
from edgewise.data.vocabulary import Vocabulary
from edgewise.errors import DataError
from edgewise.settings import describe_mistakes
from edgewise.storage import open_sealed

KIND, VERSION = "corpus", 1
OFFSETS, TOKENS = "offsets.bin", "tokens.bin"


@dataclass(frozen=True)
class Part:
    """Pairs that came from one pair of files, and how often an epoch shows each of them."""

    source: InstanceOf[str]  # not `str`: names of files need not be UTF-8
    target: InstanceOf[str]
    pairs: Annotated[int, Field(ge=0)]
    weight: Annotated[float, Field(gt=0, lt=1e6)]


class _About(BaseModel):
    """The content of corpus.json."""

    dtype: Literal["uint16", "uint32"]
    splits: dict[Literal["train", "valid"], list[Part]]


class Split:
    """The pairs of one split, train or valid: tokens without begin and end.

    `tokens` holds source 0, target 0, source 1, …; `offsets` says where each begins.
    """

    def __init__(self, folder: Path, dtype: str, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.offsets: NDArray[np.int64] = _mapped(folder / OFFSETS, np.dtype(np.int64))
        self.tokens: NDArray[Any] = _mapped(folder / TOKENS, np.dtype(dtype))
        if len(self.offsets) != 2 * len(self) + 1 or self.offsets[-1] != len(self.tokens):
            raise DataError(f"{folder} is damaged: its offsets are not those of its tokens")

    def __len__(self) -> int:
        return sum(part.pairs for part in self.parts)

    def pair(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The source and target tokens of a pair."""
        begin, middle, end = self.offsets[2 * index : 2 * index + 3]
        return self.tokens[begin:middle], self.tokens[middle:end]

    def lengths(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """How many tokens each source and each target has."""
        lengths = np.empty(2 * len(self), dtype=np.int32)
        step = 1 << 22  # so that no second copy of all the offsets is made
        for begin in range(0, len(lengths), step):
            piece = self.offsets[begin : begin + step + 1]
            lengths[begin : begin + len(piece) - 1] = np.diff(piece)
        return lengths[0::2].copy(), lengths[1::2].copy()


class Corpus:
    """A folder that `edgewise prepare` wrote: vocabulary, train and, if given, valid."""

    def __init__(self, folder: Path) -> None:
        """Open it, after reading it all once to see that nothing is damaged."""
        self._sealed, self.folder = open_sealed(folder, KIND, VERSION), folder
        self._sealed.verify()
        self.vocabulary = Vocabulary(
            self._sealed.read("vocabulary.model"), str(folder / "vocabulary.model")
        )
        try:
            about = _About.model_validate(self._sealed.json("corpus.json"))
        except ValidationError as error:
            raise DataError(f"{folder / 'corpus.json'}: {describe_mistakes(error)}") from None
        if "train" not in about.splits:
            raise DataError(f"{folder / 'corpus.json'}: splits.train must be set")
        splits = {
            name: self._split(name, about.dtype, about.splits[name])
            for name in ("train", "valid")
            if name in about.splits
        }
        self.train: Split = splits["train"]
        self.valid: Split | None = splits.get("valid")
        self._sealed.require_unchanged()

    def _split(self, name: str, dtype: str, parts: Sequence[Part]) -> Split:
        for file in (OFFSETS, TOKENS):
            self._sealed.file(f"{name}/{file}")
        return Split(self.folder / name, dtype, parts)

    @property
    def languages(self) -> tuple[str, str] | None:
        """Of source and target, if the names of all files to train on tell the same."""
        pairs = {(language_of(part.source), language_of(part.target)) for part in self.train.parts}
        source, target = pairs.pop() if len(pairs) == 1 else (None, None)
        return None if source is None or target is None else (source, target)

    def described(self) -> list[str]:
        """What there is to train on, a line for each pair of files."""
        return [
            f"{Path(part.source).name} and {Path(part.target).name}: {part.pairs:,} pairs"
            + ("" if part.weight == 1 else f", seen {part.weight:g} times as often")
            for part in self.train.parts
        ]

    @property
    def digest(self) -> str:
        """sha256 of all that training sees: tokens, vocabulary and weights."""
        names = [name for name in self._sealed.names if not name.endswith(".json")]
        seen = [
            *(self._sealed.digest(name) for name in names),
            *((part.pairs, part.weight) for part in self.train.parts),
        ]
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


class SplitWriter:
    """Writes a split, block after block."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        folder.mkdir()
        self._dtype = dtype
        self._tokens = (folder / TOKENS).open("wb")
        self._offsets = (folder / OFFSETS).open("wb")
        self._end = 0
        self._offsets.write(np.zeros(1, dtype=np.int64).tobytes())

    def append(self, tokens: NDArray[Any], lengths: NDArray[np.int32]) -> None:
        """Source and target by turns, as one array of tokens and one of lengths."""
        ends = self._end + np.cumsum(lengths, dtype=np.int64)
        self._tokens.write(tokens.astype(self._dtype, copy=False).tobytes())
        self._offsets.write(ends.tobytes())
        self._end = int(ends[-1]) if len(ends) else self._end

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tokens.close()
        self._offsets.close()


def token_type(vocabulary: Vocabulary) -> np.dtype[Any]:
    """The smallest unsigned type that holds every token."""
    return np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.uint32)


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise DataError(f"{path} must be an array of {dtype}; it has {size} bytes")
    if size == 0:  # which cannot be mapped
        return np.empty(0, dtype=dtype)
    # As a plain array: each slice of a memmap object costs a microsecond more.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
