"""BLEU of resampled corpora, from what it needs to know of each sentence."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Num
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU

from edgewise.evaluation.bleu import Score, require_same_count

# With sacreBLEU's number and seed the resamples are the same as its own.
RESAMPLES, SEED = 1000, 12345
CACHED_SENTENCES = 4000  # up to this number the draws are kept: 32 MB
Interval = tuple[float, float]


@dataclass(frozen=True)
class SentenceStatistics:
    """Lengths and matches of each sentence, which a corpus's BLEU is computed from the sums of.

    The columns: tokens of the translation and of the reference; then of 1- to 4-grams how many
    match, and how many there are.
    """

    counts: Int[np.ndarray, "sentence 10"]
    signature: str

    @classmethod
    def of(
        cls, translations: Sequence[str], references: Sequence[str], *, tokenised: bool = False
    ) -> "SentenceStatistics":
        """By sacreBLEU, whose scores of single sentences are not used.

        Tokens are those of 13a, or what spaces separate if the text is tokenised.
        """
        require_same_count(translations=translations, references=references)
        tokens = "none" if tokenised else "13a"
        metric = BLEU(tokenize=tokens, force=True, effective_order=True)
        scores = [
            metric.sentence_score(translation, [reference])
            for translation, reference in zip(translations, references, strict=True)
        ]
        counts = [[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores]
        signature = metric.get_signature()
        for name, value in (("eff", "no"), ("bs", RESAMPLES), ("seed", SEED)):
            signature.update(name, value)
        return cls(np.array(counts, dtype=np.int64), str(signature))

    def part(self, chosen: NDArray[np.bool_]) -> "SentenceStatistics":
        """Those of some of the sentences."""
        return SentenceStatistics(self.counts[chosen], self.signature)

    def bleu(self) -> Score:
        """BLEU of all the sentences, to the last bit sacreBLEU's."""
        translation, reference, *grams = (int(count) for count in self.counts.sum(axis=0))
        score = BLEU.compute_bleu(grams[:4], grams[4:], translation, reference, "exp")
        return Score(float(score.score), self.signature)

    def resampled(self) -> Float[np.ndarray, "resample"]:
        """BLEU of corpora of as many sentences, drawn with replacement.

        What is drawn depends on the number of sentences alone: for two systems it is the same.
        """
        return bleu_of(resampled_sums(self.counts))

    def interval(self) -> Interval | None:
        """Of 95 %, around BLEU; None for a single sentence, which all resamples would be."""
        return interval(self.resampled()) if len(self.counts) > 1 else None


def resampled_sums(
    statistics: Num[np.ndarray, "sentence statistic"],
) -> Num[np.ndarray, "resample statistic"]:
    """Return the sums over sentences drawn with replacement, as many as there are.

    The draws depend only on the number of sentences.
    """
    number = len(statistics)
    if number <= CACHED_SENTENCES:
        sums: Num[np.ndarray, "resample statistic"] = _cached_counts(number) @ statistics
        return sums
    return np.stack([counts @ statistics for counts in _counts(number)])


def _counts(number: int) -> Iterator[Int[np.ndarray, "sentence"]]:
    """Yield how often each sentence is in each resample."""
    generator = np.random.default_rng(SEED)
    for _ in range(RESAMPLES):
        yield np.bincount(generator.integers(number, size=number), minlength=number)


@functools.lru_cache(maxsize=8)
def _cached_counts(number: int) -> Int[np.ndarray, "resample sentence"]:
    return np.stack(list(_counts(number)))


def bleu_of(sums: Int[np.ndarray, "corpus 10"]) -> Float[np.ndarray, "corpus"]:
    """BLEU of each row of sums, smoothed as by sacreBLEU: 1/2 match, then 1/4, … if none is."""
    translation, reference = sums[:, 0], sums[:, 1]
    matching, total = sums[:, 2:6], sums[:, 6:10]
    smoothed = np.where(matching > 0, matching, 0.5 ** (matching == 0).cumsum(axis=1))
    precision = smoothed / np.maximum(total, 1)
    brevity = np.exp(np.minimum(1 - reference / np.maximum(translation, 1), 0))
    score = 100 * brevity * np.exp(np.log(precision).mean(axis=1))
    # Nothing is right, or no sentence has 4 tokens.
    return np.where(matching.any(axis=1) & total.all(axis=1), score, 0.0)


def interval(values: Float[np.ndarray, "resample"]) -> Interval:
    """What the middle 95 % of the values lie between."""
    ordered = np.sort(values)
    tail = len(ordered) // 40
    return float(ordered[tail]), float(ordered[-1 - tail])
