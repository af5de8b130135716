"""Attention with all weights in memory, for any relations but a list of edges.

With labels, work is for each (query, label), not for each (query, key, feature): q_i a_ij^T is one
of n_label products of q_i, picked by the label of the edge, and the value term is the weights
summed by label, times the table. With vectors of their own for all edges (`EdgeVectors`) it is the
paper's split: the products of a query's edges with all items and heads that share them are one
matrix product. Nothing is broadcast to [batch, head, n_query, n_key, d_head].

With the dot product it is made of differentiable operations, so autograd, torch.compile and
torch.func know it all.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from edgewise.attention import nonlinear
from edgewise.attention.compatibility import Compatibility, in_dtype
from edgewise.attention.reference import softmax_of_allowed
from edgewise.attention.relations import (
    EdgeLabels,
    EdgeVectors,
    Relations,
    RelativePositions,
    labels_of,
)


def attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    relations: Relations | None,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None,
    allowed: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    dropout: float,
    scale: float,
    compatibility: Compatibility | None = None,
) -> Float[Tensor, "batch head n_query d_head"]:
    """Equations 3 and 5."""
    # On a CPU, half precision has no fast products: all is computed in float32 and rounded once.
    # On a GPU (not measured here) products stay in half, softmax and sums by label are float32.
    work = query.dtype if query.is_cuda else torch.promote_types(query.dtype, torch.float32)
    if compatibility is not None:
        # Its gradients are sums over edges, block by block.
        work = torch.promote_types(query.dtype, torch.float32)
    sums = torch.promote_types(work, torch.float32)
    q, k, v = (x.to(work) for x in (query, key, value))
    keys, values = (None if x is None else x.to(work) for x in (key_table, value_table))
    if isinstance(relations, EdgeVectors):
        vectors = (relations.edge_key, relations.edge_value)
        relations = EdgeVectors(*(None if x is None else x.to(work) for x in vectors))
    labels = None
    has_tables = keys is not None or values is not None
    if has_tables and isinstance(relations, RelativePositions | EdgeLabels):
        labels = labels_of(relations, q.shape[2], k.shape[2], q.device)
    if compatibility is not None:
        logits = nonlinear.dense_logits(
            in_dtype(compatibility, work), q, k, relations, keys, scale
        ).to(sums)
    else:
        logits = (q @ k.mT).to(sums)
        if keys is not None and labels is not None:
            logits = logits + spread(q, keys, labels, unlabelled(relations)).to(sums)
        elif isinstance(relations, EdgeVectors) and relations.edge_key is not None:
            logits = logits + products(q, relations.edge_key).to(sums)
        logits = logits * scale
    weights = softmax_of_allowed(logits, allowed)
    weights = torch.dropout(weights, dropout, train=True)
    output = weights.to(work) @ v
    if values is not None and labels is not None:
        output = output + collect(weights, values, labels, unlabelled(relations))
    elif isinstance(relations, EdgeVectors) and relations.edge_value is not None:
        output = output + weighted(weights.to(work), relations.edge_value)
    return output.to(query.dtype)


def unlabelled(relations: Relations | None) -> bool:
    """Whether there may be edges without a label."""
    return isinstance(relations, EdgeLabels) and relations.has_unlabelled


# By label


def spread(
    x: Float[Tensor, "batch head n_query d_head"],
    table: Float[Tensor, "*head n_label d_head"],
    labels: Int64[Tensor, "*batch n_query n_key"],
    unlabelled: bool,
) -> Float[Tensor, "batch head n_query n_key"]:
    """x_i a_ij^T for every edge, one of the products of x_i with all labels; 0 for label -1."""
    by_label = x @ table.mT
    if unlabelled:
        by_label = torch.nn.functional.pad(by_label, (0, 1))
    return by_label.gather(-1, _index(labels, x, table, unlabelled))


def collect(
    weights: Float[Tensor, "batch head n_query n_key"],
    table: Float[Tensor, "*head n_label d_head"],
    labels: Int64[Tensor, "*batch n_query n_key"],
    unlabelled: bool,
) -> Float[Tensor, "batch head n_query d_head"]:
    """sum_j alpha_ij a_ij for every query: weights summed by label, times the table."""
    sums = weights.new_zeros(*weights.shape[:3], table.shape[-2] + unlabelled)
    sums = sums.scatter_add(-1, _index(labels, weights, table, unlabelled), weights)
    return sums[..., : table.shape[-2]].to(table.dtype) @ table


def _index(
    labels: Tensor, like: Tensor, table: Tensor, unlabelled: bool
) -> Int64[Tensor, "batch head n_query n_key"]:
    """The column of each edge; edges without a label have one after the last."""
    if unlabelled:
        labels = labels.masked_fill(labels < 0, table.shape[-2])
    labels = labels[:, None] if labels.dim() == 3 else labels
    return labels.expand(*like.shape[:2], *labels.shape[-2:])


# By vector


def products(
    x: Float[Tensor, "batch head n_query d_head"],
    vectors: Float[Tensor, "*any n_query n_key d_head"],
) -> Float[Tensor, "batch head n_query n_key"]:
    """x_i a_ij^T for every edge."""
    vectors, shared = _shared(vectors)
    return torch.einsum(f"bhid,{shared}ijd->bhij", x, vectors)


def weighted(
    weights: Float[Tensor, "batch head n_query n_key"],
    vectors: Float[Tensor, "*any n_query n_key d_head"],
) -> Float[Tensor, "batch head n_query d_head"]:
    """sum_j alpha_ij a_ij for every query."""
    vectors, shared = _shared(vectors)
    return torch.einsum(f"bhij,{shared}ijd->bhid", weights, vectors)


def _shared(vectors: Tensor) -> tuple[Tensor, str]:
    """The vectors without sizes of 1, and the letters of what each item or head has its own of."""
    if vectors.dim() == 3:
        return vectors, ""
    if vectors.dim() == 4:
        return vectors, "b"
    own = [(letter, size) for letter, size in zip("bh", vectors.shape[:2], strict=True) if size > 1]
    sizes = [size for _, size in own]
    return vectors.reshape(*sizes, *vectors.shape[2:]), "".join(letter for letter, _ in own)
