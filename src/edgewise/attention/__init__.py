"""Relation-aware attention: the library. It imports torch and jaxtyping only."""

from edgewise.attention.functional import relation_attention
from edgewise.attention.module import RelationAttention
from edgewise.attention.parts import AttentionParts, attention_parts
from edgewise.attention.relations import RelativePositions
from edgewise.attention.state import AttentionState

__all__ = [
    "AttentionParts",
    "AttentionState",
    "RelationAttention",
    "RelativePositions",
    "attention_parts",
    "relation_attention",
]
