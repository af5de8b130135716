"""Relation-aware attention (Shaw, Uszkoreit, Vaswani 2018), exact and fast."""

TYPE_CHECKING = False  # without `typing`: Ctrl-C is handled after this import only
if TYPE_CHECKING:
    __version__: str
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
    import importlib

    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("edgewise")
    if name in __all__:
        return getattr(importlib.import_module("edgewise.attention"), name)
    raise AttributeError(f"module 'edgewise' has no attribute {name!r}")
