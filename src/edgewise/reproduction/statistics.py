"""Rows over several seeds: mean, spread, and whether two rows differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from edgewise.evaluation.bootstrap import (
    RESAMPLES,
    SEED,
    Interval,
    SentenceStatistics,
    interval,
)


@dataclass(frozen=True)
class Spread:
    """BLEU of a row: of each seed, their mean and standard deviation (None: one seed)."""

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    interval: Interval | None  # 95 %, sentences and seeds drawn anew

    @classmethod
    def of(cls, seeds: Sequence[SentenceStatistics]) -> "Spread":
        values = tuple(each.bleu().value for each in seeds)
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        several = len(seeds[0].counts) > 1
        middle = interval(resampled(seeds, stream=0)) if several else None
        return cls(values, float(np.mean(values)), deviation, middle)


@dataclass(frozen=True)
class Difference:
    """Of the means of two rows."""

    value: float
    interval: Interval
    p_value: float


def difference(
    row: Sequence[SentenceStatistics], against: Sequence[SentenceStatistics]
) -> Difference:
    """Paired bootstrap: the sentences are drawn anew, the same for both, and the seeds of each.

    With one seed each it is the test that sacreBLEU makes. The p-value is the share of resamples
    whose absolute difference is above the mean of these by as much as the real one, or more.
    """
    means = [np.mean([each.bleu().value for each in side]) for side in (row, against)]
    value = float(means[0] - means[1])
    drawn = resampled(row, stream=1) - resampled(against, stream=2)
    distances = np.abs(drawn)
    extreme = int(np.sum(distances - distances.mean() >= abs(value)))
    return Difference(value, interval(drawn), (extreme + 1) / (RESAMPLES + 1))


def resampled(seeds: Sequence[SentenceStatistics], stream: int) -> Float[np.ndarray, "resample"]:
    """The mean BLEU of seeds drawn with replacement, on sentences drawn with replacement.

    Which sentences depends on their number alone, which seeds on the stream.
    """
    of_seeds = np.stack([each.resampled() for each in seeds])
    generator = np.random.default_rng((SEED, stream))
    drawn = generator.integers(len(seeds), size=(len(seeds), RESAMPLES))
    return np.asarray(np.take_along_axis(of_seeds, drawn, axis=0).mean(axis=0))
