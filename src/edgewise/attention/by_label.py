"""The relative terms by label: work for each (query, label), not for each (query, key).

q_i a_ij^T is one of n_label products of q_i, picked by the label of the edge; the value term is
the weights summed by label, times the table. Any labels, also different for each sentence.
Nothing has the size of [n_query, n_key, d_head].
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def vectors(table: Tensor, labels: Tensor) -> Float[Tensor, "*head n_label d_head"]:
    """What `add_spread` and `add_collected` need of a table: here, the table."""
    return table


def add_spread(
    into: Float[Tensor, "batch head n_query n_key"],
    x: Float[Tensor, "batch head n_query d_head"],
    table: Float[Tensor, "*head n_label d_head"],
    labels: Int64[Tensor, "*batch n_query n_key"],
    scale: float,
) -> None:
    """Add scale * x_i a_ij^T for every edge: the second term of Eq. 5."""
    per_label = _product(x, table.mT)
    into.add_(per_label.gather(-1, _index(labels, x)), alpha=scale)


def sums(
    weights: Float[Tensor, "batch head n_query n_key"],
    labels: Int64[Tensor, "*batch n_query n_key"],
    n_label: int,
) -> Float[Tensor, "batch head n_query n_label"]:
    """The weights of each query, summed by label; in float32 at least."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    result = weights.new_zeros(*weights.shape[:3], n_label)
    return result.scatter_add_(-1, _index(labels, weights), weights)


def add_collected(
    into: Float[Tensor, "batch head n_query d_head"],
    sums: Float[Tensor, "batch head n_query n_label"],
    table: Float[Tensor, "*head n_label d_head"],
    scale: float,
) -> None:
    """Add scale * sum_j alpha_ij a_ij for every query: the second term of Eq. 3."""
    sums = sums.to(table.dtype)
    if table.dim() == 2 and into.is_contiguous():
        into.view(-1, into.shape[-1]).addmm_(sums.flatten(0, 2), table, alpha=scale)
    else:
        into.add_(_product(sums, table), alpha=scale)


def table_gradient(
    sums: Float[Tensor, "batch head n_query n_label"],
    x: Float[Tensor, "batch head n_query d_head"],
    table: Float[Tensor, "*head n_label d_head"],
    labels: Int64[Tensor, "*batch n_query n_key"],
) -> Float[Tensor, "*head n_label d_head"]:
    """The gradient of a table whose edges (i, j) have the gradients weight_ij x_i."""
    x = x.to(sums.dtype)
    if table.dim() == 3:
        return torch.matmul(sums.mT, x).sum(0)
    # A product for each sentence and a sum: faster than one product over all their rows.
    return torch.bmm(sums.flatten(1, 2).mT, x.flatten(1, 2)).sum(0)


def _product(
    x: Float[Tensor, "batch head n inner"], table: Float[Tensor, "*head inner m"]
) -> Float[Tensor, "batch head n m"]:
    if table.dim() == 3:
        return torch.matmul(x, table)
    return torch.mm(x.flatten(0, 2), table).view(*x.shape[:3], -1)


def _index(labels: Tensor, like: Tensor) -> Int64[Tensor, "batch head n_query n_key"]:
    labels = labels[:, None] if labels.dim() == 3 else labels
    return labels.expand(*like.shape[:2], *labels.shape[-2:])
