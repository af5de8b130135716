"""Scores that can be compared, each with its signature."""

from edgewise.evaluation.bleu import Score, bleu

__all__ = ["Score", "bleu"]
