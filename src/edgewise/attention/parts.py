"""The two terms of each logit, and its weight: for pictures and alignments."""

from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from edgewise.attention import composite
from edgewise.attention.inputs import normalise
from edgewise.attention.relations import Relation
from edgewise.attention.shapes import EdgeMatrix, Keys, Queries, Table
from edgewise.errors import ArgumentError


class AttentionParts(NamedTuple):
    """The two terms of every logit (equation 5, scaled; before the mask), and the weights."""

    content: EdgeMatrix
    relation: EdgeMatrix
    weights: EdgeMatrix


def attention_parts(
    query: Queries,
    key: Keys,
    relations: Relation | None,
    *,
    key_table: Table | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | Tensor | None = None,
) -> AttentionParts:
    """Return content logits, relation logits and weights of every edge.

    content + relation are the logits; the weights are their softmax over the edges that may be
    attended to, zeros for a query that may attend to nothing. The compatibility is the dot product.
    Arguments are as in `relation_attention`; `EdgeList` is not supported, as it has no such matrix.
    """
    if isinstance(relations, Relation) and not relations.is_dense:
        kind = type(relations).__name__
        raise ArgumentError(f"attention_parts takes no relations={kind} (use EdgeLabels and mask)")
    inputs = normalise(
        *(query, key, key, relations), key_table=key_table, mask=mask, causal=causal, scale=scale
    )
    dtype, inputs = inputs.query.dtype, inputs.cast(composite.product_dtype(inputs.query))
    content, relation = composite.logit_terms(inputs, inputs.labels())
    relation = torch.zeros_like(content) if relation is None else relation
    weights = composite.masked_softmax(content + relation, inputs.allowed())
    return AttentionParts(content.to(dtype), relation.to(dtype), weights.to(dtype))
