"""All scores of one system."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgewise.evaluation.bleu import Score, bleu, chrf, require_same_count
from edgewise.evaluation.bootstrap import Interval, SentenceStatistics
from edgewise.evaluation.lengths import Bucket, bleu_by_length
from edgewise.evaluation.older import compound_bleu, tokenised_bleu
from edgewise.evaluation.significance import Comparison, compare


@dataclass(frozen=True)
class Report:
    """What there is to say of a system's translations; `interval` is that of `bleu`, 95 %."""

    sentences: int
    bleu: Score
    interval: Interval | None
    chrf: Score
    tokenised_lowercased_bleu: Score
    compound_split_bleu: Score
    by_source_length: tuple[Bucket, ...]
    comparison: Comparison | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def evaluate(
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    *,
    against: Sequence[str] | None = None,
    tokenised: bool = False,
) -> Report:
    """All scores; `against` are another system's translations, to be compared with.

    Of text that is tokenised already, the BLEU for older papers takes the tokens as they are.
    """
    others = {} if against is None else {"against": against}
    require_same_count(sources=sources, translations=translations, references=references, **others)
    statistics = SentenceStatistics.of(translations, references)
    other = None if against is None else SentenceStatistics.of(against, references)
    return Report(
        sentences=len(sources),
        bleu=bleu(translations, references),
        interval=statistics.interval(),
        chrf=chrf(translations, references),
        tokenised_lowercased_bleu=tokenised_bleu(translations, references, tokenised=tokenised),
        compound_split_bleu=compound_bleu(translations, references, tokenised=tokenised),
        by_source_length=bleu_by_length(sources, statistics),
        comparison=None if other is None else compare(statistics, other),
    )
