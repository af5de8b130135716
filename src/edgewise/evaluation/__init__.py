"""Scores that can be compared, each with its signature."""

from edgewise.evaluation.bleu import Score, bleu, chrf
from edgewise.evaluation.bootstrap import SentenceStatistics
from edgewise.evaluation.lengths import Bucket, bleu_by_length
from edgewise.evaluation.older import compound_bleu, split_compounds, tokenised_bleu
from edgewise.evaluation.report import Report, evaluate
from edgewise.evaluation.significance import Comparison, compare
from edgewise.evaluation.table import table

__all__ = [
    "Bucket",
    "Comparison",
    "Report",
    "Score",
    "SentenceStatistics",
    "bleu",
    "bleu_by_length",
    "chrf",
    "compare",
    "compound_bleu",
    "evaluate",
    "split_compounds",
    "table",
    "tokenised_bleu",
]
