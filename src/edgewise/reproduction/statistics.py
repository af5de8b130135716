"""Rows over several seeds: mean, spread, and whether two rows differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from edgewise.evaluation.bootstrap import RESAMPLES, SEED, Interval, SentenceStatistics, interval


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
    """Of the means of two rows. With one seed of either, what seeds do is not in it."""

    value: float
    interval: Interval
    p_value: float
    one_seed: bool

    @classmethod
    def of(cls, value: float, drawn: Float[np.ndarray, "resample"], one_seed: bool) -> "Difference":
        """With the interval and the p-value of resamples."""
        below, above = int(np.sum(drawn <= 0)), int(np.sum(drawn >= 0))
        p_value = min(1.0, 2 * (min(below, above) + 1) / (RESAMPLES + 1))
        return cls(value, interval(drawn), p_value, one_seed)


def difference(
    row: Sequence[SentenceStatistics], against: Sequence[SentenceStatistics]
) -> Difference:
    """Paired bootstrap: the sentences are drawn anew, the same for both, and the seeds of each.

    The p-value is twice the smaller share of resamples on either side of no difference, so that
    it is below 5 % where the interval, of the same resamples, leaves out 0. (The test that
    sacreBLEU makes, which `edgewise evaluate` has too, finds a difference twice as often.)
    """
    means = [float(np.mean([each.bleu().value for each in side])) for side in (row, against)]
    drawn = resampled(row, stream=1) - resampled(against, stream=2)
    return Difference.of(means[0] - means[1], drawn, min(len(row), len(against)) == 1)


def resampled(seeds: Sequence[SentenceStatistics], stream: int) -> Float[np.ndarray, "resample"]:
    """The mean BLEU of seeds drawn with replacement, on sentences drawn with replacement.

    Which sentences depends on their number alone, which seeds on the stream.
    """
    return of_drawn_seeds(np.stack([each.resampled() for each in seeds]), stream)


def of_drawn_seeds(
    of_seeds: Float[np.ndarray, "seed resample"], stream: int
) -> Float[np.ndarray, "resample"]:
    """The mean over seeds that are drawn with replacement, anew for each resample.

    Means of n seeds that are drawn from n seeds vary less than those of n new ones, by (n - 1) / n:
    that is made good.
    """
    count, mean = len(of_seeds), of_seeds.mean(axis=0)
    if count == 1:
        return np.asarray(mean)
    generator = np.random.default_rng((SEED, stream))
    drawn = generator.integers(count, size=(count, RESAMPLES))
    of_drawn = np.take_along_axis(of_seeds, drawn, axis=0).mean(axis=0)
    return np.asarray(mean + (of_drawn - mean) * np.sqrt(count / (count - 1)))
