"""Limits of a search: lengths, excluded tokens, cancelled sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.decoding.candidates import Predictions
from edgewise.decoding.engine import Wanted


@dataclass(frozen=True)
class Bounds:
    """Lengths do not count begin and end; limits are those of each sentence."""

    limits: Sequence[int]
    min_length: int
    end: int
    excluded: Sequence[int]
    wanted: Wanted = lambda sentence: True

    def steps(self, begun: int) -> range:
        """How many tokens there are before each that is searched for; the last is an end.

        begun: how many each translation begins with.
        """
        return range(begun, max(self.limits) + 1)

    def hidden(self, length: int) -> Int[Tensor, " hidden"]:
        """What must not come after so many tokens."""
        early = [self.end] if length < self.min_length else []
        return torch.tensor([*self.excluded, *early], dtype=torch.int64)

    def ending(
        self, predictions: Predictions, sentences: Sequence[int], length: int, slots: int
    ) -> Iterator[tuple[int, Float[Tensor, " slots"]]]:
        """Where only the end may come after so many tokens: the row, and its log-probability.

        sentences: which one each row of the batch is, of so many hypotheses each.
        """
        rows = [row for row, i in enumerate(sentences) if length >= self.limits[i]]
        if rows:
            ends = torch.full((len(sentences) * slots,), self.end)
            given = predictions.of(ends).view(len(sentences), slots).cpu()
            yield from ((row, given[row]) for row in rows)
