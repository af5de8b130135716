"""What translations must begin with, how long they may be, what they never have, and whether they
are still wanted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.decoding.candidates import Predictions
from edgewise.decoding.engine import Tokens, Wanted


@dataclass(frozen=True)
class Bounds:
    """Lengths do not count begin and end; prefixes and limits are those of each sentence."""

    prefixes: Sequence[Tokens]
    limits: Sequence[int]
    min_length: int
    begin: int
    end: int
    excluded: Sequence[int]
    wanted: Wanted = lambda sentence: True

    @property
    def steps(self) -> range:
        """How many tokens there are before each that is searched for; the last is an end."""
        return range(max(self.limits) + 1)

    def hidden(self, length: int) -> Int[Tensor, " hidden"]:
        """What must not come after so many tokens."""
        early = [self.end] if length < self.min_length else []
        return torch.tensor([*self.excluded, *early], dtype=torch.int64)

    def forced(
        self, predictions: Predictions, sentences: Sequence[int], length: int, slots: int
    ) -> Iterator[tuple[int, int, Float[Tensor, " slots"]]]:
        """Where only one token may come after so many: the row, the token, its log-probability.

        sentences: which one each row of the batch is, of so many hypotheses each.
        """
        tokens = [self._forced(i, length) for i in sentences]
        if all(token is None for token in tokens):
            return
        wanted = torch.tensor([token or 0 for token in tokens]).repeat_interleave(slots)
        given = predictions.of(wanted).view(len(tokens), slots).cpu()
        for row, token in enumerate(tokens):
            if token is not None:
                yield row, token, given[row]

    def _forced(self, sentence: int, length: int) -> int | None:
        if length < len(self.prefixes[sentence]):
            return self.prefixes[sentence][length]
        return self.end if length >= self.limits[sentence] else None
