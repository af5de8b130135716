"""Attention with all weights in memory, composed of differentiable operators of PyTorch.

With labels, the work is for each (query, label), not for each (query, key, feature): q_i a_ij^T is
one of n_label products of q_i, gathered by the label of the edge, and the value term is the weights
scatter-added by label, times the table. With a vector for every edge (`EdgeVectors`) it is the
paper's split: the products of a query's edges with all items and heads that share them are one
matrix product. Nothing is broadcast to [batch, head, n_query, n_key, d_head].

Autograd, torch.compile and torch.func differentiate all of it.
"""

import math

import torch
from jaxtyping import Int
from torch import Tensor

from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.shapes import EdgeMatrix, EdgeVectorTensor, Labels, Mask, Queries, Table


def attention(inputs: AttentionInputs) -> Queries:
    """Return equations 3 and 5 for a relation with an edge between all queries and keys."""
    work = product_dtype(inputs.query)
    dtype, inputs = inputs.query.dtype, inputs.cast(work)
    labels = inputs.labels()
    # Scaled before the products: in half precision they would overflow sooner.
    query = inputs.query * inputs.scale
    logits = (query @ inputs.key.mT).to(accumulation_dtype(work))
    relation_term = relation_logits(inputs, query, labels)
    if relation_term is not None:
        logits = logits + relation_term.to(logits.dtype)
    return weighted_sum(inputs, masked_softmax(logits, inputs.allowed()), labels).to(dtype)


def product_dtype(query: Tensor) -> torch.dtype:
    """Return the dtype of products: on a CPU, half precision is not faster and less exact."""
    return query.dtype if query.is_cuda else accumulation_dtype(query.dtype)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of softmax and of sums by label."""
    return torch.promote_types(dtype, torch.float32)


def relation_logits(
    inputs: AttentionInputs, query: Queries, labels: Labels | None
) -> EdgeMatrix | None:
    """Return q_i a^K_ij^T of every edge; None: there are no vectors in the keys."""
    if labels is not None and inputs.key_table is not None:
        return gather_by_label(query, inputs.key_table, labels, inputs.has_unlabelled)
    vectors = inputs.edge_vectors("edge_key")
    return None if vectors is None else edge_einsum("bhid,{}ijd->bhij", query, vectors)


def weighted_sum(inputs: AttentionInputs, weights: EdgeMatrix, labels: Labels | None) -> Queries:
    """Return equation 3 for weights before dropout."""
    weights = torch.dropout(weights, inputs.dropout, train=True)
    output = weights.to(inputs.value.dtype) @ inputs.value
    if labels is not None and inputs.value_table is not None:
        return output + label_values(weights, inputs.value_table, labels, inputs.has_unlabelled)
    vectors = inputs.edge_vectors("edge_value")
    if vectors is not None:
        output = output + edge_einsum("bhij,{}ijd->bhid", weights.to(vectors.dtype), vectors)
    return output


def masked_softmax(logits: EdgeMatrix, allowed: Mask | None) -> EdgeMatrix:
    """Return the softmax over allowed edges; a query with none gets zeros, not NaN."""
    if allowed is None:
        return logits.softmax(-1)
    return logits.masked_fill(~allowed, -math.inf).softmax(-1).masked_fill(~allowed, 0.0)


def gather_by_label(x: Queries, table: Table, labels: Labels, has_unlabelled: bool) -> EdgeMatrix:
    """Return x_i a_ij^T of every edge, gathered from x_i w_l^T of every label; 0 for label -1."""
    by_label = x @ table.mT
    if has_unlabelled:
        by_label = torch.nn.functional.pad(by_label, (0, 1))
    return by_label.gather(-1, _columns(labels, x, table.shape[-2], has_unlabelled))


def label_values(
    weights: EdgeMatrix, table: Table, labels: Labels, has_unlabelled: bool
) -> Queries:
    """Return sum_j alpha_ij a_ij of every query: weights summed by label, times the table."""
    n_label = table.shape[-2]
    sums = weights.new_zeros(*weights.shape[:3], n_label + has_unlabelled)
    sums = sums.scatter_add(-1, _columns(labels, weights, n_label, has_unlabelled), weights)
    return sums[..., :n_label].to(table.dtype) @ table


def _columns(
    labels: Labels, like: Tensor, n_label: int, has_unlabelled: bool
) -> Int[Tensor, "batch head n_query n_key"]:
    """Return the column of each edge; edges without a label have one after the last."""
    labels = labels if labels.dtype == torch.int64 else labels.int()
    if has_unlabelled:
        labels = labels.masked_fill(labels < 0, n_label)
    labels = labels[:, None] if labels.dim() == 3 else labels
    return labels.expand(*like.shape[:2], *labels.shape[-2:])


def edge_einsum(equation: str, x: Tensor, vectors: EdgeVectorTensor) -> Tensor:
    """Return an einsum in which {} stands for the batch and head of vectors that are not shared."""
    sizes = [(x, size) for x, size in zip("bh", vectors.shape[:2], strict=True) if size > 1]
    letters = "".join(letter for letter, _ in sizes)
    vectors = vectors.reshape(*(size for _, size in sizes), *vectors.shape[2:])
    return torch.einsum(equation.format(letters), x, vectors)
