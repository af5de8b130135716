"""edgewise: relation-aware attention for PyTorch."""

from importlib.metadata import version

from edgewise.attention import (
    RelationAttention,
    RelativePositions,
    attention_parts,
    relation_attention,
)

__version__ = version("edgewise")

__all__ = ["RelationAttention", "RelativePositions", "attention_parts", "relation_attention"]
