"""The definition: equations 3 and 4 of the paper as written. Slow and obvious.

Every other path is tested against this one. It holds a vector for every edge of every head and
sentence, so it is for small sizes; it is made of differentiable operations only, so it has
derivatives of any order and works under every transformation of PyTorch.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.attention.arguments import allowed_edges, check_arguments
from edgewise.attention.relations import RelativePositions


def relation_attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    relations: RelativePositions | None,
    *,
    key_table: Float[Tensor, "*head n_label d_head"] | None = None,
    value_table: Float[Tensor, "*head n_label d_head"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "batch head n_query d_head"]:
    """z_i = sum_j alpha_ij (x_j W^V + a^V_ij), alpha the softmax of e_ij over j."""
    mask = check_arguments(
        query, key, value, relations, key_table, value_table, mask, causal, dropout, scale
    )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale

    edge_key = edge_vectors(relations, key_table, query, key)
    edge_value = edge_vectors(relations, value_table, query, key)

    # Eq. 4: e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(d_z)
    logits = scale * torch.einsum("bhid,bhijd->bhij", query, key.unsqueeze(2) + edge_key)
    weights = softmax_of_allowed(logits, allowed_edges(query, key, relations, mask, causal))
    weights = torch.dropout(weights, dropout, train=True)

    # Eq. 3: z_i = sum_j alpha_ij (x_j W^V + a^V_ij)
    return torch.einsum("bhij,bhijd->bhid", weights, value.unsqueeze(2) + edge_value)


def edge_vectors(
    relations: RelativePositions | None,
    table: Float[Tensor, "*head n_label d_head"] | None,
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
) -> Float[Tensor, "#batch #head #n_query #n_key d_head"]:
    """a_ij = w[label of (i, j)] for every edge; zeros where there is no table."""
    if relations is None or table is None:
        return query.new_zeros(1, 1, 1, 1, query.shape[-1])
    labels = relations.labels(query.shape[2], key.shape[2], query.device)
    labels = labels if labels.dim() == 3 else labels[None]
    per_head = table if table.dim() == 3 else table[None]
    return per_head[:, labels].transpose(0, 1)


def softmax_of_allowed(
    logits: Float[Tensor, "batch head n_query n_key"],
    allowed: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
) -> Float[Tensor, "batch head n_query n_key"]:
    """Softmax over the edges that may be attended; a query with none gets zeros, not NaN."""
    if allowed is None:
        return logits.softmax(-1)
    return logits.masked_fill(~allowed, -math.inf).softmax(-1).masked_fill(~allowed, 0.0)
