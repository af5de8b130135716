"""Attention with all weights in memory, composed of differentiable operators of PyTorch.

With labels, the work is for each (query, label), not for each (query, key, feature): q_i a_ij^T is
one of n_label products of q_i, gathered by the label of the edge, and the value term is the weights
scatter-added by label, times the table. With `EdgeVectors`, the vectors of a query's edges are
multiplied with the queries of all items and heads that share them at once, as in the paper. Nothing
is broadcast to [batch, head, n_query, n_key, d_head].
"""

import math

import torch
from torch import Tensor

from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.shapes import EdgeMatrix, EdgeVectorTensor, Labels, Mask, Queries, Table


def attention(inputs: AttentionInputs) -> Queries:
    """Compute attention by equations 3 and 5, with an edge between all queries and keys."""
    dtype, inputs = inputs.query.dtype, inputs.cast(product_dtype(inputs.query))
    labels = inputs.labels()
    logits, relation_logits = logit_terms(inputs, labels)
    if relation_logits is not None:
        logits = logits + relation_logits
    return weighted_sum(inputs, masked_softmax(logits, inputs.allowed()), labels).to(dtype)


def product_dtype(query: Tensor) -> torch.dtype:
    """Return the dtype of products: on a CPU, half precision is not faster and less exact."""
    return query.dtype if query.is_cuda else accumulation_dtype(query.dtype)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of softmax and of sums by label."""
    return torch.promote_types(dtype, torch.float32)


def logit_terms(
    inputs: AttentionInputs, labels: Labels | None
) -> tuple[EdgeMatrix, EdgeMatrix | None]:
    """Return s q_i k_j^T and s q_i a^K_ij^T of every edge; None: there are no vectors a^K."""
    # Scaled before the products: in half precision they would overflow sooner.
    query, dtype = inputs.query * inputs.scale, accumulation_dtype(inputs.query.dtype)
    content = (query @ inputs.key.mT).to(dtype)
    if labels is None or inputs.key_table is None:
        vectors = inputs.edge_vectors("edge_key")
        if vectors is None:
            return content, None
        return content, edge_einsum("bhid,{}ijd->bhij", query, vectors).to(dtype)
    by_label = query @ inputs.key_table.mT
    if inputs.has_unlabelled:
        by_label = torch.nn.functional.pad(by_label, (0, 1))
    return content, by_label.gather(-1, _columns(inputs, inputs.key_table, labels)).to(dtype)


def weighted_sum(inputs: AttentionInputs, weights: EdgeMatrix, labels: Labels | None) -> Queries:
    """Return equation 3 for weights before dropout."""
    weights, table = torch.dropout(weights, inputs.dropout, train=True), inputs.value_table
    output = weights.to(inputs.value.dtype) @ inputs.value
    if labels is not None and table is not None:
        n_label = table.shape[-2]
        sums = weights.new_zeros(*weights.shape[:3], n_label + inputs.has_unlabelled)
        sums = sums.scatter_add(-1, _columns(inputs, table, labels), weights)
        return output + sums[..., :n_label].to(table.dtype) @ table
    if (vectors := inputs.edge_vectors("edge_value")) is not None:
        output = output + edge_einsum("bhij,{}ijd->bhid", weights.to(vectors.dtype), vectors)
    return output


def masked_softmax(logits: EdgeMatrix, allowed: Mask | None) -> EdgeMatrix:
    """Return the softmax over allowed edges; a query with none gets zeros, not NaN."""
    if allowed is None:
        return logits.softmax(-1)
    return logits.masked_fill(~allowed, -math.inf).softmax(-1).masked_fill(~allowed, 0.0)


def _columns(inputs: AttentionInputs, table: Table, labels: Labels) -> Tensor:
    """Return the column of each edge; edges without a label have one after the last."""
    labels = labels if labels.dtype == torch.int64 else labels.int()
    if inputs.has_unlabelled:
        labels = labels.masked_fill(labels < 0, table.shape[-2])
    return labels.expand(*inputs.query.shape[:2], -1, -1)


def edge_einsum(equation: str, x: Tensor, vectors: EdgeVectorTensor) -> Tensor:
    """Return an einsum in which {} stands for the batch and head of vectors that are not shared."""
    sizes = [(x, size) for x, size in zip("bh", vectors.shape[:2], strict=True) if size > 1]
    letters = "".join(letter for letter, _ in sizes)
    vectors = vectors.reshape(*(size for _, size in sizes), *vectors.shape[2:])
    return torch.einsum(equation.format(letters), x, vectors)
