"""BLEU and chrF by sacreBLEU."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from edgewise.errors import ArgumentError


@dataclass(frozen=True)
class Score:
    """A score and what it was computed with."""

    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.signature})"


def bleu(translations: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU of the corpus against one reference a sentence."""
    # force: sacreBLEU would print a warning about text that looks tokenised.
    return corpus_score(BLEU(tokenize="13a", force=True), translations, references)


def chrf(translations: Sequence[str], references: Sequence[str]) -> Score:
    """chrF of the corpus: n-grams of up to 6 characters, recall twice as important (chrF2)."""
    return corpus_score(CHRF(), translations, references)


def corpus_score(
    metric: BLEU | CHRF, translations: Sequence[str], references: Sequence[str]
) -> Score:
    """A metric of sacreBLEU's with its signature."""
    require_same_count(translations=translations, references=references)
    score = metric.corpus_score(list(translations), [list(references)])
    return Score(float(score.score), str(metric.get_signature()))


def require_same_count(**texts: Sequence[str]) -> None:
    """Raise ArgumentError unless there are sentences, and as many of each name."""
    (first, sentences), *others = texts.items()
    for name, given in texts.items():
        if isinstance(given, str):
            raise ArgumentError(f"{name} must be a list of strings; got one string: give [text]")
    if not sentences:
        raise ArgumentError(f"{first} must have at least one sentence; got none")
    for name, given in others:
        if len(given) != len(sentences):
            raise ArgumentError(
                f"{name} must have a sentence for each of the {len(sentences)} {first}; "
                f"got {len(given)}"
            )
