"""The tokens of a model from elsewhere in our order, and the rows they have in its matrices.

Ours has one vocabulary, whose first four tokens are PAD, BEGIN, END and UNKNOWN. One that has two
gets the union of their pieces. The logits of all its own tokens are what they were, and no others
take part in the softmax.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.data.imported_vocabulary import ImportedVocabulary
from edgewise.data.vocabulary import BEGIN, UNKNOWN
from edgewise.errors import DataError

NONE = -1
# The bias of a logit that must not be: e to this power is zero in any precision.
NEVER = -1e9


@dataclass(frozen=True)
class Special:
    """How a model writes the tokens that are no text, and what a translation starts with.

    begin: the token that is there for starting alone, if there is one.
    """

    pad: str
    begin: str | None
    end: str
    unknown: str
    start: str


@dataclass(frozen=True)
class Arrangement:
    """Pieces in the order of our tokens, and the row of each; NONE where a side has none."""

    pieces: list[str]
    source: list[int]
    target: list[int]
    output: list[int]

    @classmethod
    def of(
        cls,
        source: Sequence[str],
        target: Sequence[str],
        special: Special,
        *,
        source_end: bool,
        file: Path,
    ) -> "Arrangement":
        """source, target: the pieces of each side in the order of their rows."""
        needed = (
            ("source", source, [special.unknown, *([special.end] if source_end else [])]),
            ("target", target, [special.unknown, special.end, special.start]),
        )
        for side, pieces, tokens in needed:
            if len(set(pieces)) < len(pieces):
                twice = next(piece for piece in pieces if pieces.count(piece) > 1)
                raise DataError(f"{file}: the {side} vocabulary has {twice!r} twice")
            for token in tokens:
                if token not in pieces:
                    raise DataError(f"{file}: the {side} vocabulary must have {token!r}")
        if len({special.pad, special.end, special.unknown}) < 3:
            raise DataError(
                f"{file}: padding, end and unknown must be three tokens; they are {special.pad!r}, "
                f"{special.end!r} and {special.unknown!r}"
            )
        union = dict.fromkeys([*source, *target])
        # What starts a translation may be something else elsewhere: then ours is a copy of its row.
        copied = special.start != special.begin
        begin = unused("<s>", union) if copied else special.start
        first = [special.pad, begin, special.end, special.unknown]
        ordered = list(dict.fromkeys([*first, *union]))
        rows = []
        for pieces in (source, target):
            numbers = {piece: row for row, piece in enumerate(pieces)}
            rows.append([numbers.get(piece, NONE) for piece in ordered])
            rows[-1][BEGIN] = numbers.get(special.start, NONE)
        output = list(rows[1])
        if copied:
            output[BEGIN] = NONE
        return cls(ordered, rows[0], rows[1], output)

    @property
    def n_source(self) -> int:
        """Rows of the source's matrix: each has a piece."""
        return max(self.source) + 1

    @property
    def n_target(self) -> int:
        return max(self.target) + 1

    def vocabulary(
        self, source: bytes, target: bytes, unsaid: Collection[str] = ()
    ) -> ImportedVocabulary:
        """Of two sentencepiece models. unsaid: pieces that no translation has."""
        each = list(enumerate(zip(self.pieces, self.source, self.target, strict=True)))
        return ImportedVocabulary(
            *(source, target, self.pieces),
            source_only=[
                i for i, (piece, _, row) in each if i > UNKNOWN and (row == NONE or piece in unsaid)
            ],
            target_only=[i for i, (_, row, _) in each if i > UNKNOWN and row == NONE],
        )

    def embeddings(
        self,
        source: Float[Tensor, "n_source d_model"],
        target: Float[Tensor, "n_target d_model"],
        output: Float[Tensor, "n_target d_model"],
        bias: Float[Tensor, " n_target"],
    ) -> dict[str, Tensor]:
        """By our names: one matrix if it is enough, else three; and the bias of the output."""
        matrices = [
            _rows(source, self.source),
            _rows(target, self.target),
            _rows(output, self.target),
        ]
        names = ["embedding.weight", "target_embedding.weight", "output_embedding.weight"]
        if all(torch.equal(matrices[0], other) for other in matrices[1:]):
            del names[1:]
        absent = torch.tensor(self.output) == NONE
        biases = _rows(bias[:, None], self.output)[:, 0].masked_fill(absent, NEVER)
        return dict(zip(names, matrices, strict=False)) | {"output_bias": biases}


def _rows(matrix: Float[Tensor, "n d"], numbers: list[int]) -> Float[Tensor, "vocabulary d"]:
    index = torch.tensor(numbers)
    return matrix[index.clamp(min=0)].masked_fill_(index[:, None] == NONE, 0)


def unused(name: str, names: Collection[str]) -> str:
    """A name that is not among others."""
    while name in names:
        name += "_"
    return name


def divide_embeddings(tensors: dict[str, Tensor], last_norm: str) -> None:
    """By the root of d_model, which ours are multiplied with: of a model that has no such factor.

    Where they are the output's as well, the last norm makes up for it.
    """
    root = math.sqrt(tensors["embedding.weight"].shape[1])
    tensors["embedding.weight"] /= root
    if "target_embedding.weight" in tensors:
        tensors["target_embedding.weight"] /= root
    else:
        tensors[f"{last_norm}.weight"] *= root
        tensors[f"{last_norm}.bias"] *= root
