"""Relation-aware attention (Shaw, Uszkoreit, Vaswani 2018), exact and fast."""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgewise.attention import (
        Additive,
        EdgeLabels,
        EdgeList,
        EdgeVectors,
        Gated,
        RelationAttention,
        RelativePositions,
        attention_parts,
        relation_attention,
    )

__version__ = version("edgewise")
__all__ = [
    "Additive",
    "EdgeLabels",
    "EdgeList",
    "EdgeVectors",
    "Gated",
    "RelationAttention",
    "RelativePositions",
    "attention_parts",
    "relation_attention",
]


def __getattr__(name: str) -> object:
    # At first use, not at import: `edgewise --help` and `edgewise prepare` need no PyTorch.
    if name in __all__:
        return getattr(importlib.import_module("edgewise.attention"), name)
    raise AttributeError(f"module 'edgewise' has no attribute {name!r}")
