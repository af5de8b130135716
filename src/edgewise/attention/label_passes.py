"""The forward and backward pass with all weights in memory, for labels in any layout.

All queries are multiplied with the vectors of all labels at once; `Layout.to_edges` copies the
products to the edges, and `Layout.sum_by_label` sums the weights of a query by label. The batch is
computed in parts whose logits fit the CPU's cache; only the weights are held for every edge.

Tensors are [outer, inner, n, d_head]: batch and head, or head and batch where tables differ between
heads, so that the rows that share a table are adjacent. A group is one head of one item.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.attention import composite, private
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import Operator
from edgewise.attention.relations import Relation
from edgewise.attention.shapes import Table

Outer = Float[Tensor, "outer inner n_query d_head"]
OuterKeys = Float[Tensor, "outer inner n_key d_head"]
OuterMask = Bool[Tensor, "#outer #inner #n_query #n_key"]
EdgeMatrices = Float[Tensor, "group n_query n_key"]
LabelSums = Float[Tensor, "group n_query n_column"]
Columns = Float[Tensor, "*_outer _n_column d_head"]
PieceTables = Float[Tensor, "_pieces _n_column d_head"]

CHUNK = 2**19  # logits computed at a time
PRODUCT_ROWS = 2048  # rows of a product with a table: about as many are the fastest


@runtime_checkable
class Layout(Protocol):
    """How edges get their labels. Column c of `by_label` belongs to one label and its vector.

    A vector that is added to all rows of the key table shifts all logits of a query equally, and
    the weights stay the same. Added to all rows of the value table, it is added to the output,
    since weights sum to one. So a layout may subtract the first row from all.
    """

    n_column: int
    margin: int  # entries that `sum_by_label` may read before and after the matrix

    def columns(self, table: Table) -> Columns:
        """Return the vector of every column, less `first_row`."""

    def first_row(self, table: Table) -> Table | None:
        """Return the row that is subtracted from all others; None: there is none."""
        return None

    def table_gradient(self, table: Table, grad_columns: Columns, grad_first: Tensor) -> Table:
        """Return the gradient of a table from that of `columns`; grad_first: of what is added."""

    def to_edges(self, by_label: LabelSums, part: slice, out: EdgeMatrices) -> None:
        """Write the entry of each edge's label to `out`; `part` is a slice of `outer`."""

    def sum_by_label(self, edges: EdgeMatrices, part: slice, out: LabelSums) -> None:
        """Write the sum over the edges of each query and label to `out`."""


class Inputs(NamedTuple):
    """What the passes of all layouts are given; `allowed` includes causality."""

    query: Outer
    key: OuterKeys
    value: OuterKeys
    key_table: Table | None
    value_table: Table | None
    allowed: OuterMask | None

    def parts(self) -> Iterator[slice]:
        """Yield slices of `outer` of about equal size, whose logits fit the cache."""
        outer, inner, n_query, _ = self.query.shape
        count = min(outer, -(-outer * inner * n_query * self.key.shape[2] // CHUNK))
        step = -(-outer // count)
        for start in range(0, outer, step):
            yield slice(start, min(outer, start + step))

    def groups(self, part: slice, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return a part of every tensor, with batch and head as one dimension."""
        is_whole = part.stop - part.start == self.query.shape[0]
        return [(x if is_whole else x[part]).flatten(0, 1) for x in tensors]

    def columns(self, layout: Layout, scale: float) -> tuple[Columns | None, Columns | None]:
        """Return the columns of both tables, those of the keys times the scale.

        Products that add to their output are slower with a factor.
        """
        keys, values = (None if x is None else layout.columns(x) for x in self[3:5])
        return None if keys is None else keys * scale, values

    def pieces(self, columns: Columns | None, part: slice) -> PieceTables | None:
        """Return the columns for each piece of the queries of a part."""
        if columns is None:
            return None
        _, inner, n_query, _ = self.query.shape
        if columns.dim() == 3:
            return columns[part].repeat_interleave(n_pieces(inner * n_query), 0)
        return columns.expand(n_pieces((part.stop - part.start) * inner * n_query), -1, -1)


@functools.lru_cache(maxsize=1024)
def n_pieces(rows: int) -> int:
    """Return in how many equal pieces to multiply rows with a table."""
    return next(x for x in range(max(1, rows // PRODUCT_ROWS), 0, -1) if rows % x == 0)


def by_piece(x: Tensor, tables: PieceTables) -> Float[Tensor, "pieces rows d"]:
    """Return [group, n_query, d] with the rows of each piece, to multiply with its table."""
    return x.view(tables.shape[0], -1, x.shape[-1])


def ordered(x: Tensor, heads_first: bool) -> Tensor:
    """Return x with its first two dimensions swapped if heads_first: its own inverse."""
    return x.transpose(0, 1) if heads_first else x


def arrange(inputs: AttentionInputs, heads_first: bool) -> Inputs:
    """Return the inputs of the passes."""
    allowed = inputs.allowed()
    tensors = (inputs.query, inputs.key, inputs.value)
    query, key, value = (ordered(x, heads_first).contiguous() for x in tensors)
    allowed = None if allowed is None else ordered(allowed, heads_first)
    return Inputs(query, key, value, inputs.key_table, inputs.value_table, allowed)


def operator(name: str, options: type[Any]) -> Operator:
    """Return the operator whose arguments are `Inputs` and a NamedTuple of options.

    Options have a scale, `layout(inputs)`, `sizes(inputs)`: its n_column and margin, and
    `relation(inputs)`: the labels as a relation, and whether heads are the first dimension.
    """
    return Operator(
        name,
        *(Inputs, options),
        forward=lambda x, a: forward(x, a.layout(x), a.scale),
        backward=lambda x, a, *results: backward(x, a.layout(x), a.scale, *results),
        fake=lambda x, a: empty_results(x.query, x.key.shape[2], *a.sizes(x)),
        composite=lambda x, a: composite_forward(x, a.scale, *a.relation(x)),
        n_results=3,
    )


def composite_forward(x: Inputs, scale: float, relations: Relation, heads_first: bool) -> Outer:
    """Return the output by differentiable operators of PyTorch."""
    query, key, value = (ordered(y, heads_first) for y in x[:3])
    mask = None if x.allowed is None else ordered(x.allowed, heads_first)
    inputs = AttentionInputs(query, key, value, relations, *x[3:5], mask, scale=scale)
    return ordered(composite.attention(inputs), heads_first)


def empty_results(query: Outer, n_key: int, n_column: int, margin: int) -> tuple[Tensor, ...]:
    """Return memory for the output, the weights and their sums by label."""
    output, sizes = torch.empty_like(query), query.shape[:3]
    return output, with_margin((*sizes, n_key), margin, query), query.new_empty(*sizes, n_column)


def with_margin(shape: tuple[int, ...], margin: int, like: Tensor) -> Tensor:
    """Return an uninitialised tensor; its memory has `margin` entries or more at both ends."""
    size, margin = math.prod(shape), -(-margin // 16) * 16  # rows begin on a cache line
    return like.new_empty(size + 2 * margin).narrow(0, margin, size).view(shape)


def forward(inputs: Inputs, layout: Layout, scale: float) -> tuple[Tensor, ...]:
    """Return the output, the weights and their sums by label."""
    query, key, value, _, value_table, allowed = inputs
    results = empty_results(query, key.shape[2], layout.n_column, layout.margin)
    hidden = None if allowed is None else (~allowed).expand(results[1].shape)
    empty = None if allowed is None else ~allowed.any(-1, keepdim=True)
    has_empty = empty is not None and bool(empty.any())
    key_columns, value_columns = inputs.columns(layout, scale)
    first_row = None if value_table is None else layout.first_row(value_table)
    for part in inputs.parts():
        q, k, v, z, w, sums = inputs.groups(part, (query, key, value, *results))
        keys, values = inputs.pieces(key_columns, part), inputs.pieces(value_columns, part)
        if keys is not None:
            torch.bmm(by_piece(q, keys), keys.mT, out=by_piece(sums, keys))
            layout.to_edges(sums, part, out=w)
        w.baddbmm_(q, k.mT, beta=0 if keys is None else 1, alpha=scale)
        if hidden is not None:
            results[1][part].masked_fill_(hidden[part], -torch.inf)
        torch.softmax(w, -1, out=w)
        if hidden is not None and has_empty:
            results[1][part].masked_fill_(hidden[part], 0.0)
        if values is not None:
            layout.sum_by_label(w, part, out=sums)
            by_label, rows = by_piece(sums, values), by_piece(z, values)
            first = inputs.pieces(first_row, part)
            if first is None:
                torch.bmm(by_label, values, out=rows)
            else:
                torch.baddbmm(first, by_label, values, out=rows)
        z.baddbmm_(w, v, beta=0 if values is None else 1)
    if first_row is not None and empty is not None and has_empty:
        results[0].masked_fill_(empty, 0.0)
    return results


def backward(
    inputs: Inputs, layout: Layout, scale: float, grad: Outer, weights: Tensor, by_label: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value and the two tables (empty if there is none)."""
    query, key, value, key_table, value_table = inputs[:5]
    grads = [torch.empty_like(x) for x in (query, key, value)]
    key_columns, value_columns = inputs.columns(layout, scale)
    grad_keys: list[PieceTables] = []
    grad_values: list[PieceTables] = []
    grad_firsts: list[Tensor] = []
    has_first = value_table is not None and layout.first_row(value_table) is not None
    tensors = (query, key, value, grad.contiguous(), *grads, weights, by_label)
    grad_w = sums = query.new_empty(0)
    for part in inputs.parts():
        q, k, v, g, grad_q, grad_k, grad_v, w, w_sums = inputs.groups(part, tensors)
        keys, values = inputs.pieces(key_columns, part), inputs.pieces(value_columns, part)
        if grad_w.shape != w.shape:
            grad_w, sums = with_margin(w.shape, layout.margin, w), torch.empty_like(w_sums)
        if values is not None:
            rows = by_piece(g, values)
            torch.bmm(rows, values.mT, out=by_piece(sums, values))
            layout.to_edges(sums, part, out=grad_w)
            grad_values.append(torch.bmm(by_piece(w_sums, values).mT, rows))
        grad_w.baddbmm_(g, v.mT, beta=0 if values is None else 1)
        torch.bmm(w.mT, g, out=grad_v)
        if values is not None and has_first:  # the first row is added to all values
            grad_firsts.append(by_piece(grad_v, values).sum(1))
        private.softmax_backward_(grad_w, w)
        if keys is not None:
            layout.sum_by_label(grad_w, part, out=sums)
            grad_by_label = by_piece(sums, keys)
            torch.bmm(grad_by_label, keys, out=by_piece(grad_q, keys))
            grad_keys.append(torch.bmm(grad_by_label.mT, by_piece(q, keys)))
        grad_q.baddbmm_(grad_w, k, beta=0 if keys is None else 1, alpha=scale)
        grad_k.baddbmm_(grad_w.mT, q, beta=0, alpha=scale)
    return (
        *grads,
        table_gradient(query, key_table, grad_keys, [], layout).mul_(scale),
        table_gradient(query, value_table, grad_values, grad_firsts, layout),
    )


def table_gradient(
    q: Outer, table: Table | None, pieces: list[PieceTables], firsts: list[Tensor], layout: Layout
) -> Tensor:
    """Return the gradient of a table from those of all pieces; empty without a table."""
    if table is None:
        return q.new_empty(0)
    groups = (*table.shape[:-2], -1)  # of pieces with the same table
    columns = (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).unflatten(0, groups).sum(-3)
    first = torch.cat(firsts).unflatten(0, groups).sum(-2) if firsts else columns.new_zeros(())
    return layout.table_gradient(table, columns, first)
