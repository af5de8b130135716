"""Attention with a label for every edge, without dropout: `dense` with a backward pass of its own.

Some items of the batch and some queries are computed at a time, so that their logits stay in the
cache; the weights are all that is held for every edge. Edges without a label have a column of their
own after the last, whose vector is zero.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from edgewise.attention.reference import with_zeros

# About so many logits at a time, but at least these queries of an item: each part of the queries
# adds to the gradients of all keys.
CHUNK = 2**19
LEAST_ROWS = 64


def fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    allowed: Tensor | None,
    labels: Tensor,
    unlabelled: bool,
    scale: float,
) -> tuple[Tensor, ...]:
    """Empty tensors like those that `forward` returns."""
    _, values = _with_last(key_table, value_table, unlabelled)
    columns = 0 if values is None else values.shape[-2]
    sizes = query.shape[:3]
    weights, sums = (query.new_empty(*sizes, n) for n in (key.shape[2], columns))
    return torch.empty_like(query), weights, sums


def forward(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None,
    allowed: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    labels: Int64[Tensor, "*batch n_query n_key"],
    unlabelled: bool,
    scale: float,
) -> tuple[Tensor, ...]:
    """The output and, for the backward pass, the weights, and the weights summed by label."""
    output, weights, sums = fake(
        *(query, key, value, key_table, value_table, allowed, labels, unlabelled, scale)
    )
    keys, values = _with_last(key_table, value_table, unlabelled)
    hidden = None if allowed is None else (~allowed).expand(weights.shape)
    last = _last_column(keys, values) if unlabelled else None
    for items, rows, columns in _parts(weights, labels, last):
        w = weights[items, :, rows]
        _products(query[items, :, rows], key[items], keys, columns, scale, out=w)
        if hidden is not None:
            w.masked_fill_(hidden[items, :, rows], -torch.inf)
        torch.softmax(w, -1, out=w)
        if hidden is not None:
            w.masked_fill_(hidden[items, :, rows], 0.0)
        if values is None:
            z = w @ value[items]
        else:
            z = _sum_by_label(w, columns, out=sums[items, :, rows]) @ values
            _add_product(z, w, value[items])
        output[items, :, rows] = z
    return output, weights, sums


def backward(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None,
    allowed: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    labels: Int64[Tensor, "*batch n_query n_key"],
    unlabelled: bool,
    scale: float,
    grad: Float[Tensor, "batch head n_query d_head"],
    weights: Float[Tensor, "batch head n_query n_key"],
    sums: Float[Tensor, "batch head n_query n_column"],
) -> tuple[Tensor, ...]:
    """The gradients of query, key, value and the two tables (empty for one that is not there)."""
    of_query, of_key, of_value = (torch.empty_like(x) for x in (query, key, value))
    keys, values = _with_last(key_table, value_table, unlabelled)
    of_keys, of_values = (
        query.new_empty(0) if x is None else torch.zeros_like(x) for x in (keys, values)
    )
    of_w = query.new_empty(0)
    last = _last_column(keys, values) if unlabelled else None
    for items, rows, columns in _parts(weights, labels, last):
        q, g, w = (x[items, :, rows] for x in (query, grad, weights))
        of_w = of_w if of_w.shape == w.shape else query.new_empty(w.shape)
        _products(g, value[items], values, columns, 1.0, out=of_w)
        if values is not None:
            _add_to_table(of_values, sums[items, :, rows], g)
        _sum_over_queries(w, g, 1.0, of_value[items], rows)
        torch._softmax_backward_data(of_w, w, -1, w.dtype, grad_input=of_w)
        if keys is None:
            of_q = of_w @ key[items]
        else:
            by_label = query.new_empty(*w.shape[:3], keys.shape[-2])
            of_q = _sum_by_label(of_w, columns, out=by_label) @ keys
            _add_product(of_q, of_w, key[items])
            _add_to_table(of_keys, by_label, q)
        torch.mul(of_q, scale, out=of_query[items, :, rows])
        _sum_over_queries(of_w, q, scale, of_key[items], rows)
    of_keys *= scale
    tables = zip((key_table, value_table), (of_keys, of_values), strict=True)
    given = (x if table is None else x[..., : table.shape[-2], :] for table, x in tables)
    return of_query, of_key, of_value, *(x.contiguous() for x in given)


def _with_last(
    key_table: Tensor | None, value_table: Tensor | None, unlabelled: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The tables; with a row of zeros at the same place of both, if there are edges without a
    label."""
    if not unlabelled:
        return key_table, value_table
    tables = (key_table, value_table)
    size = 1 + max(0 if x is None else x.shape[-2] for x in tables)
    keys, values = (None if x is None else with_zeros(x, size - x.shape[-2]) for x in tables)
    return keys, values


def _last_column(keys: Tensor | None, values: Tensor | None) -> int:
    table = keys if keys is not None else values
    assert table is not None
    return table.shape[-2] - 1


def _parts(
    weights: Tensor, labels: Tensor, last: int | None
) -> Iterator[tuple[slice, slice, Int64[Tensor, "items head rows n_key"]]]:
    """Items and queries to compute at a time, and the column of each of their edges.

    last: the column of edges without a label; None: there are none.
    """
    batch, heads, n_query, n_key = weights.shape
    n_items = min(batch, max(1, CHUNK // (heads * n_query * n_key)))
    n_rows = max(LEAST_ROWS, CHUNK // (heads * n_key)) if n_items == 1 else n_query
    for item in range(0, batch, n_items):
        for row in range(0, n_query, n_rows):
            items, rows = slice(item, min(batch, item + n_items)), slice(row, row + n_rows)
            columns = labels[items, rows] if labels.dim() == 3 else labels[None, rows]
            if last is not None:
                columns = columns.masked_fill(columns < 0, last)
            yield items, rows, columns[:, None].expand(items.stop - item, heads, -1, -1)


def _products(
    x: Float[Tensor, "items head rows d_head"],
    y: Float[Tensor, "items head n_key d_head"],
    table: Tensor | None,
    columns: Int64[Tensor, "items head rows n_key"],
    scale: float,
    out: Float[Tensor, "items head rows n_key"],
) -> None:
    """scale * x_i (y_j + a_ij)^T for every edge."""
    if table is None:
        torch.mul(x @ y.mT, scale, out=out)
        return
    torch.gather(x @ (table * scale).mT, -1, columns, out=out)
    _add_product(out, x, y.mT, scale)


def _sum_by_label(
    weights: Float[Tensor, "items head rows n_key"],
    columns: Int64[Tensor, "items head rows n_key"],
    out: Float[Tensor, "items head rows n_column"],
) -> Float[Tensor, "items head rows n_column"]:
    """The weights of each query, summed by label."""
    return out.zero_().scatter_add_(-1, columns, weights)


def _add_product(to: Tensor, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
    """Add scale * x y, for each item and head."""
    if to.is_contiguous():
        to.flatten(0, 1).baddbmm_(x.flatten(0, 1), y.flatten(0, 1), alpha=scale)
    else:
        to.add_(x @ y, alpha=scale)


def _sum_over_queries(
    weights: Float[Tensor, "items head rows n_key"],
    x: Float[Tensor, "items head rows d_head"],
    scale: float,
    into: Float[Tensor, "items head n_key d_head"],
    rows: slice,
) -> None:
    """scale * sum_i w_ij x_i for every key j, added to that of the queries before these."""
    of_rows = weights.mT @ x
    if rows.start == 0:
        torch.mul(of_rows, scale, out=into)
    else:
        into.add_(of_rows, alpha=scale)


def _add_to_table(
    of_table: Float[Tensor, "*head n_column d_head"],
    sums: Float[Tensor, "items head rows n_column"],
    x: Float[Tensor, "items head rows d_head"],
) -> None:
    """Add sum_i s_il x_i for every label l."""
    of_table += (sums.mT @ x).sum((0, 1) if of_table.dim() == 2 else 0)
