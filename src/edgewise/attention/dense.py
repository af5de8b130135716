"""Attention with all weights in memory, for any labels: offsets of each sentence, dropout.

Work is for each (query, label), not for each (query, key, feature): q_i a_ij^T is one of n_label
products of q_i, picked by the label of the edge, and the value term is the weights summed by
label, times the table. Nothing has the size of [n_query, n_key, d_head].

It is made of differentiable operations, so autograd, torch.compile and torch.func know it all.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from edgewise.attention.reference import softmax_of_allowed


def attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    key_table: Float[Tensor, "*head n_label d_head"] | None,
    value_table: Float[Tensor, "*head n_label d_head"] | None,
    labels: Int64[Tensor, "*batch n_query n_key"] | None,
    allowed: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    dropout: float,
    scale: float,
) -> Float[Tensor, "batch head n_query d_head"]:
    """Equations 3 and 5. `labels` may be None where there is no table."""
    # On a CPU, half precision has no fast products: all is computed in float32 and rounded once.
    # On a GPU (not measured here) products stay in half, softmax and sums by label are float32.
    work = query.dtype if query.is_cuda else torch.promote_types(query.dtype, torch.float32)
    sums = torch.promote_types(work, torch.float32)
    q, k, v = (x.to(work) for x in (query, key, value))
    logits = (q @ k.mT).to(sums)
    if key_table is not None and labels is not None:
        logits = logits + spread(q, key_table.to(work), labels).to(sums)
    weights = softmax_of_allowed(logits * scale, allowed)
    weights = torch.dropout(weights, dropout, train=True)
    output = weights.to(work) @ v
    if value_table is not None and labels is not None:
        output = output + collect(weights, value_table.to(work), labels)
    return output.to(query.dtype)


def spread(
    x: Float[Tensor, "batch head n_query d_head"],
    table: Float[Tensor, "*head n_label d_head"],
    labels: Int64[Tensor, "*batch n_query n_key"],
) -> Float[Tensor, "batch head n_query n_key"]:
    """x_i a_ij^T for every edge: the second term of Eq. 5, before the scale."""
    return (x @ table.mT).gather(-1, _index(labels, x))


def collect(
    weights: Float[Tensor, "batch head n_query n_key"],
    table: Float[Tensor, "*head n_label d_head"],
    labels: Int64[Tensor, "*batch n_query n_key"],
) -> Float[Tensor, "batch head n_query d_head"]:
    """sum_j alpha_ij a_ij for every query: the second term of Eq. 3."""
    sums = weights.new_zeros(*weights.shape[:3], table.shape[-2])
    sums = sums.scatter_add(-1, _index(labels, weights), weights)
    return sums.to(table.dtype) @ table


def _index(labels: Tensor, like: Tensor) -> Int64[Tensor, "batch head n_query n_key"]:
    labels = labels[:, None] if labels.dim() == 3 else labels
    return labels.expand(*like.shape[:2], *labels.shape[-2:])
