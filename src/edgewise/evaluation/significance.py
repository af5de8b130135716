"""Is one system better than another, or lucky? Paired bootstrap resampling (Koehn, 2004)."""

from dataclasses import dataclass

import numpy as np

from edgewise.errors import ArgumentError
from edgewise.evaluation.bleu import Score
from edgewise.evaluation.bootstrap import RESAMPLES, Interval, SentenceStatistics, interval


@dataclass(frozen=True)
class Comparison:
    """BLEU of a system and of another; the difference has a 95 % interval."""

    bleu: Score
    against: Score
    difference: float
    interval: Interval
    p_value: float


def compare(system: SentenceStatistics, against: SentenceStatistics) -> Comparison:
    """The test that sacreBLEU makes, of two systems' translations of the same sentences.

    The p-value is the share of resamples whose absolute difference is above the mean of these by
    as much as the real difference, or more. Equal systems have 1 (1/1001 in sacreBLEU).
    """
    if len(system.counts) != len(against.counts):
        raise ArgumentError(
            f"against must be of as many sentences as system, {len(system.counts)}; "
            f"got {len(against.counts)}"
        )
    if len(system.counts) < 2:
        raise ArgumentError("system must be of 2 sentences or more to be compared; got 1")
    bleu, other = system.bleu(), against.bleu()
    difference = bleu.value - other.value
    drawn = system.resampled() - against.resampled()
    distances = np.abs(drawn)
    extreme = int(np.sum(distances - distances.mean() >= abs(difference)))
    p_value = (extreme + 1) / (RESAMPLES + 1)
    return Comparison(bleu, other, difference, interval(drawn), p_value)
