"""Relation-aware attention: the library. It imports torch and jaxtyping only."""

from edgewise.attention.api import relation_attention
from edgewise.attention.cache import AttentionState
from edgewise.attention.compatibility import Additive, Compatibility, Gated
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.module import RelationAttention
from edgewise.attention.parts import AttentionParts, attention_parts
from edgewise.attention.relations import EdgeLabels, EdgeVectors, Relation, RelativePositions

__all__ = [
    "Additive",
    "AttentionParts",
    "AttentionState",
    "Compatibility",
    "EdgeLabels",
    "EdgeList",
    "EdgeVectors",
    "Gated",
    "Relation",
    "RelationAttention",
    "RelativePositions",
    "attention_parts",
    "relation_attention",
]
