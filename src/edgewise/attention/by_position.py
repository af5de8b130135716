"""The relative terms by position: the paper's reshaping (section 3.3), for short sequences.

All sentences have the same edge vectors at position i, so one product a position serves the whole
batch: n_query products of [batch * head, d_head] and [d_head, n_key], with no gather at all. With
a table for each head there are head * n_query products of [batch, d_head]. The edge vectors are
held, [n_query, n_key, d_head]: less than the logits where d_head is below batch * head.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def vectors(
    table: Float[Tensor, "*head n_label d_head"], labels: Int64[Tensor, "n_query n_key"]
) -> Float[Tensor, "position n_key d_head"]:
    """a_ij at every position: a query's place or, with a table for each head, head and place."""
    edges = table.index_select(-2, labels.flatten())
    return edges.view(-1, labels.shape[1], table.shape[-1])


def add_spread(
    into: Float[Tensor, "batch head n_query n_key"],
    x: Float[Tensor, "batch head n_query d_head"],
    edges: Float[Tensor, "position n_key d_head"],
    labels: Int64[Tensor, "n_query n_key"],
    scale: float,
) -> None:
    """Add scale * x_i a_ij^T for every edge: the second term of Eq. 5."""
    _add_product(into, x, edges.mT, scale)


def sums(
    weights: Float[Tensor, "batch head n_query n_key"],
    labels: Int64[Tensor, "n_query n_key"],
    n_label: int,
) -> Float[Tensor, "batch head n_query n_key"]:
    """What `add_collected` and `table_gradient` need of the weights: here, the weights."""
    return weights


def add_collected(
    into: Float[Tensor, "batch head n_query d_head"],
    weights: Float[Tensor, "batch head n_query n_key"],
    edges: Float[Tensor, "position n_key d_head"],
    scale: float,
) -> None:
    """Add scale * sum_j alpha_ij a_ij for every query: the second term of Eq. 3."""
    _add_product(into, weights, edges, scale)


def table_gradient(
    weights: Float[Tensor, "batch head n_query n_key"],
    x: Float[Tensor, "batch head n_query d_head"],
    table: Float[Tensor, "*head n_label d_head"],
    labels: Int64[Tensor, "n_query n_key"],
) -> Float[Tensor, "*head n_label d_head"]:
    """The gradient of a table whose edges (i, j) have the gradients weight_ij x_i."""
    n_position = labels.shape[0] * (table.shape[0] if table.dim() == 3 else 1)
    edges = torch.bmm(_by_position(weights, n_position).mT, _by_position(x, n_position))
    edges = edges.view(*table.shape[:-2], labels.numel(), x.shape[-1])
    return torch.zeros_like(table).index_add_(-2, labels.flatten(), edges)


def _add_product(into: Tensor, x: Tensor, edges: Tensor, scale: float) -> None:
    target, rows = _by_position(into, len(edges)), _by_position(x, len(edges))
    if rows.shape[1] >= 256:
        # Large products go one after the other, straight into the result.
        target.baddbmm_(rows, edges, alpha=scale)
    else:
        target.add_(torch.bmm(rows, edges), alpha=scale)


def _by_position(x: Tensor, n_position: int) -> Float[Tensor, "position row last"]:
    """[batch, head, n, last] as [position, row, last]: a view of what is contiguous."""
    return x.view(-1, n_position, x.shape[-1]).transpose(0, 1)
