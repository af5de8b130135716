"""The definition: equations 3 and 4 of the paper as written. Slow and obvious.

Every other path is tested against this one. It holds a vector for every edge of every head and
sentence, so it is for small sizes; it is made of differentiable operations only, so it has
derivatives of any order and works under every transformation of PyTorch.
"""

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from edgewise.attention.arguments import allowed_edges, check_arguments
from edgewise.attention.compatibility import Compatibility, edge_logits, vector_of
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.relations import EdgeVectors, Relations, labels_of, of_full_rank


def relation_attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    relations: Relations | None,
    *,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None = None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    compatibility: Compatibility | None = None,
) -> Float[Tensor, "batch head n_query d_head"]:
    """z_i = sum_j alpha_ij (x_j W^V + a^V_ij), alpha the softmax of e_ij over j."""
    mask = check_arguments(
        *(query, key, value, relations, key_table, value_table),
        *(mask, causal, dropout, scale, compatibility),
    )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if isinstance(relations, EdgeList):
        return _along_edges(
            query, key, value, relations, key_table, value_table, dropout, scale, compatibility
        )
    edge_key = vectors_of(relations, key_table, "edge_key", query, key)
    edge_value = vectors_of(relations, value_table, "edge_value", query, key)

    # Eq. 4: e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(d_z), or another compatibility
    u = vector_of(compatibility, rank=5)
    logits = edge_logits(compatibility, query.unsqueeze(3), key.unsqueeze(2), edge_key, u, scale)
    weights = softmax_of_allowed(logits, allowed_edges(query, key, relations, mask, causal))
    weights = torch.dropout(weights, dropout, train=True)

    # Eq. 3: z_i = sum_j alpha_ij (x_j W^V + a^V_ij)
    return torch.einsum("bhij,bhijd->bhid", weights, value.unsqueeze(2) + edge_value)


def vectors_of(
    relations: Relations | None,
    table: Float[Tensor, "*head n_label d_head"] | None,
    which: str,
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
) -> Float[Tensor, "#batch #head #n_query #n_key d_head"]:
    """a_ij = w[label of (i, j)], or as given, for every edge; zeros where there is none."""
    if isinstance(relations, EdgeVectors) and getattr(relations, which) is not None:
        return of_full_rank(getattr(relations, which))
    assert not isinstance(relations, EdgeList)
    if relations is None or isinstance(relations, EdgeVectors) or table is None:
        return query.new_zeros(1, 1, 1, 1, query.shape[-1])
    labels = labels_of(relations, query.shape[2], key.shape[2], query.device)
    labels = labels if labels.dim() == 3 else labels[None]
    return rows_of(table, labels).transpose(0, 1)


def rows_of(
    table: Float[Tensor, "*head n_label d_head"], labels: Int64[Tensor, "*edges"]
) -> Float[Tensor, "#head *edges d_head"]:
    """The vector of each edge, for each head that has a table of its own; zeros for label -1."""
    per_head = table if table.dim() == 3 else table[None]
    return with_zeros(per_head)[:, labels]


def with_zeros(
    table: Float[Tensor, "*any n_label d_head"], rows: int = 1
) -> Float[Tensor, "*any n_row d_head"]:
    """The table with rows of zeros at its end, which is what index -1 means."""
    return torch.nn.functional.pad(table, (0, 0, 0, rows))


def softmax_of_allowed(
    logits: Float[Tensor, "batch head n_query n_key"],
    allowed: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
) -> Float[Tensor, "batch head n_query n_key"]:
    """Softmax over the edges that may be attended; a query with none gets zeros, not NaN."""
    if allowed is None:
        return logits.softmax(-1)
    return logits.masked_fill(~allowed, -math.inf).softmax(-1).masked_fill(~allowed, 0.0)


def _along_edges(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    graph: EdgeList,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None,
    dropout: float,
    scale: float,
    compatibility: Compatibility | None,
) -> Float[Tensor, "batch head n_query d_head"]:
    """The same where j stands for an edge of the list: a query's own are allowed, no others."""
    of_edge = query[:, :, graph.query_index]
    edge_key = None if key_table is None else rows_of(key_table, graph.labels)[None]
    edge_value = 0.0 if value_table is None else rows_of(value_table, graph.labels)[None]
    u = vector_of(compatibility, rank=4)
    logits = edge_logits(compatibility, of_edge, key[:, :, graph.key_index], edge_key, u, scale)
    queries = torch.arange(query.shape[2], device=query.device)
    own = (graph.query_index == queries[:, None])[None, None]
    weights = softmax_of_allowed(logits.unsqueeze(2).expand(-1, -1, len(queries), -1), own)
    weights = torch.dropout(weights, dropout, train=True)
    return weights @ (value[:, :, graph.key_index] + edge_value)
