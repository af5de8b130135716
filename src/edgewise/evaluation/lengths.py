"""BLEU by the length of the source."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgewise.errors import ArgumentError
from edgewise.evaluation.bleu import Score
from edgewise.evaluation.bootstrap import Interval, SentenceStatistics

# Fewest and most words, None for any number.
RANGES: tuple[tuple[int, int | None], ...] = (
    (0, 0),
    *((first, first + 9) for first in range(1, 61, 10)),
    (61, None),
)


@dataclass(frozen=True)
class Bucket:
    """The sentences whose source has `first` to `last` words (None: or more), and their BLEU."""

    first: int
    last: int | None
    sentences: int
    bleu: Score
    interval: Interval | None

    @property
    def name(self) -> str:
        """`11-20`, or `61+`."""
        if self.last is None:
            return f"{self.first}+"
        return f"{self.first}-{self.last}" if self.first < self.last else str(self.first)


def bleu_by_length(sources: Sequence[str], statistics: SentenceStatistics) -> tuple[Bucket, ...]:
    """Buckets by words, which white space separates; those without a sentence are left out."""
    if len(sources) != len(statistics.counts):
        raise ArgumentError(
            f"statistics must be of as many sentences as there are sources, {len(sources)}; "
            f"got {len(statistics.counts)}"
        )
    words = np.array([len(source.split()) for source in sources])
    buckets = []
    for first, last in RANGES:
        chosen = (words >= first) & (words <= (np.inf if last is None else last))
        if chosen.any():
            part = statistics.part(chosen)
            buckets.append(Bucket(first, last, int(chosen.sum()), part.bleu(), part.interval()))
    return tuple(buckets)
