"""BLEU by sacreBLEU."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU


@dataclass(frozen=True)
class Score:
    """A score and what it was computed with."""

    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.signature})"


def bleu(translations: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU of the corpus against one reference a sentence."""
    metric = BLEU()
    score = metric.corpus_score(list(translations), [list(references)])
    return Score(float(score.score), str(metric.get_signature()))
