"""What a weight is made of: for pictures and alignments."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.attention.arguments import allowed_edges, check_arguments
from edgewise.attention.dense import products, spread, unlabelled
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.reference import softmax_of_allowed
from edgewise.attention.relations import (
    EdgeLabels,
    EdgeVectors,
    Relations,
    RelativePositions,
    labels_of,
)
from edgewise.errors import ArgumentError


class AttentionParts(NamedTuple):
    """Each edge's logit in its two terms (Eq. 5, scaled; before the mask), and its weight."""

    content: Float[Tensor, "batch head n_query n_key"]
    relation: Float[Tensor, "batch head n_query n_key"]
    weights: Float[Tensor, "batch head n_query n_key"]


def attention_parts(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    relations: Relations | None,
    *,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> AttentionParts:
    """Content logits, relation logits and weights of every edge.

    content + relation are the logits; their softmax over what may be attended are the weights,
    zeros for a query with nothing to attend. The arguments are those of `relation_attention`; a
    list of edges has no such matrix.
    """
    if isinstance(relations, EdgeList):
        raise ArgumentError(
            "attention_parts is of all queries and keys; got relations=EdgeList "
            "(EdgeLabels with a mask says the same of a small graph)"
        )
    mask = check_arguments(query, key, None, relations, key_table, None, mask, causal, 0.0, scale)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    content = scale * (query @ key.mT)
    relation = torch.zeros_like(content)
    if isinstance(relations, EdgeVectors) and relations.edge_key is not None:
        relation = scale * products(query, relations.edge_key)
    elif isinstance(relations, RelativePositions | EdgeLabels) and key_table is not None:
        labels = labels_of(relations, query.shape[2], key.shape[2], query.device)
        relation = scale * spread(query, key_table, labels, unlabelled(relations))
    allowed = allowed_edges(query, key, relations, mask, causal)
    return AttentionParts(content, relation, softmax_of_allowed(content + relation, allowed))
