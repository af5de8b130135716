"""Gather and scatter by label, some items and queries at a time, with a hand-written backward pass.

The logits of a chunk stay in the cache; only the weights are held for every edge. Edges without a
label have a column after the last, whose vector is zero.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from edgewise.attention import composite, private
from edgewise.attention.backends.base import Backend, named, why_not_dot_product
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import register
from edgewise.attention.relations import EdgeLabels, RelativePositions
from edgewise.attention.shapes import EdgeMatrix, Keys, Labels, Mask, Queries, Table

# Logits computed at a time; at least MIN_ROWS queries of an item, since every chunk of queries
# adds to the gradients of all keys.
CHUNK = 2**19
MIN_ROWS = 64


def supports(inputs: AttentionInputs) -> str | None:
    relations = inputs.relations
    if relations is None or not (relations.has_labels and relations.is_dense and inputs.has_tables):
        return f"needs a label for every edge, and tables; got relations={named(relations)}"
    return why_not_dot_product(inputs, dropout=False, cpu_only=True)


def cost(inputs: AttentionInputs) -> float:
    """For the labels of relative positions, which are computed at each call, `gather` is faster."""
    return 2.0 if isinstance(inputs.relations, RelativePositions) else 1.0


def run(inputs: AttentionInputs) -> Queries:
    """Return equations 3 and 5; half precision is computed in float32 and rounded once."""
    relations, dtype = inputs.relations, inputs.query.dtype
    assert relations is not None
    inputs = inputs.cast(composite.accumulation_dtype(dtype))
    labels = relations.labels_between(inputs.n_query, inputs.n_key, inputs.query.device)
    tensors = inputs.query, inputs.key, inputs.value, inputs.key_table, inputs.value_table
    arguments = Arguments(
        *tensors, inputs.allowed(), labels, relations.has_unlabelled, inputs.scale
    )
    return _chunked_gather(arguments).to(dtype)


class Arguments(NamedTuple):
    """The arguments of the operator; `allowed` includes causality."""

    query: Queries
    key: Keys
    value: Keys
    key_table: Table | None
    value_table: Table | None
    allowed: Mask | None
    labels: Labels
    has_unlabelled: bool
    scale: float

    @property
    def n_column(self) -> int:
        """Return the number of columns of sums by label; tables are padded to as many rows."""
        tables = (self.key_table, self.value_table)
        return max(0 if x is None else x.shape[-2] for x in tables) + self.has_unlabelled

    def padded_tables(self) -> list[Float[Tensor, "*head n_column d_head"] | None]:
        """Return the tables with rows of zeros at their ends."""
        n_column = self.n_column
        return [
            x if x is None or x.shape[-2] == n_column else pad(x, (0, 0, 0, n_column - x.shape[-2]))
            for x in (self.key_table, self.value_table)
        ]


def _fake(a: Arguments) -> tuple[Tensor, ...]:
    sizes, n_column = a.query.shape[:3], 0 if a.value_table is None else a.n_column
    weights, sums = (a.query.new_empty(*sizes, n) for n in (a.key.shape[2], n_column))
    return torch.empty_like(a.query), weights, sums


def _forward(a: Arguments) -> tuple[Tensor, ...]:
    """Return the output, the weights, and the weights summed by label."""
    output, weights, sums = _fake(a)
    key_table, value_table = a.padded_tables()
    hidden = None if a.allowed is None else (~a.allowed).expand(weights.shape)
    for items, rows, column in chunks(a, weights):
        w = weights[items, :, rows]
        edge_products(a.query[items, :, rows], a.key[items], key_table, column, a.scale, out=w)
        if hidden is not None:
            w.masked_fill_(hidden[items, :, rows], -torch.inf)
        torch.softmax(w, -1, out=w)
        if hidden is not None:
            w.masked_fill_(hidden[items, :, rows], 0.0)
        if value_table is None:
            z = w @ a.value[items]
        else:
            z = sum_by_label(w, column, out=sums[items, :, rows]) @ value_table
            add_product(z, w, a.value[items])
        output[items, :, rows] = z
    return output, weights, sums


def _backward(
    a: Arguments,
    grad: Queries,
    weights: EdgeMatrix,
    sums: Float[Tensor, "batch head n_query n_column"],
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value and the two tables (empty if there is none)."""
    grad_query, grad_key, grad_value = (torch.empty_like(x) for x in (a.query, a.key, a.value))
    key_table, value_table = tables = a.padded_tables()
    grad_keys, grad_values = (
        a.query.new_empty(0) if x is None else torch.zeros_like(x) for x in tables
    )
    grad_w = a.query.new_empty(0)
    for items, rows, column in chunks(a, weights):
        q, g, w = (x[items, :, rows] for x in (a.query, grad, weights))
        grad_w = grad_w if grad_w.shape == w.shape else w.new_empty(w.shape)
        edge_products(g, a.value[items], value_table, column, 1.0, out=grad_w)
        if value_table is not None:
            add_to_table(grad_values, sums[items, :, rows], g)
        sum_over_queries(w, g, 1.0, grad_value[items], rows)
        private.softmax_backward_(grad_w, w)
        if key_table is None:
            grad_q = grad_w @ a.key[items]
        else:
            by_label = w.new_empty(*w.shape[:3], a.n_column)
            grad_q = sum_by_label(grad_w, column, out=by_label) @ key_table
            add_product(grad_q, grad_w, a.key[items])
            add_to_table(grad_keys, by_label, q)
        torch.mul(grad_q, a.scale, out=grad_query[items, :, rows])
        sum_over_queries(grad_w, q, a.scale, grad_key[items], rows)
    grad_keys *= a.scale
    grad_tables = (
        x if table is None else x[..., : table.shape[-2], :].contiguous()
        for table, x in ((a.key_table, grad_keys), (a.value_table, grad_values))
    )
    return grad_query, grad_key, grad_value, *grad_tables


def _composite(a: Arguments) -> Tensor:
    relations = EdgeLabels.unchecked(a.labels)
    tensors = a.query, a.key, a.value, relations, a.key_table, a.value_table, a.allowed
    return composite.attention(AttentionInputs(*tensors, scale=a.scale))


def chunks(
    a: Arguments, weights: Tensor
) -> Iterator[tuple[slice, slice, Int64[Tensor, "items head rows n_key"]]]:
    """Yield the items and queries to compute at a time, and the column of each of their edges."""
    batch, heads, n_query, n_key = weights.shape
    n_items = min(batch, max(1, CHUNK // (heads * n_query * n_key)))
    n_rows = max(MIN_ROWS, CHUNK // (heads * n_key)) if n_items == 1 else n_query
    for item in range(0, batch, n_items):
        for row in range(0, n_query, n_rows):
            items, rows = slice(item, min(batch, item + n_items)), slice(row, row + n_rows)
            labels = a.labels[items, rows] if a.labels.dim() == 3 else a.labels[None, rows]
            column = labels.long()
            if a.has_unlabelled:
                column = column.masked_fill(column < 0, a.n_column - 1)
            yield items, rows, column[:, None].expand(items.stop - item, heads, -1, -1)


def edge_products(
    x: Float[Tensor, "items head rows d_head"],
    y: Float[Tensor, "items head n_key d_head"],
    table: Tensor | None,
    column: Int64[Tensor, "items head rows n_key"],
    scale: float,
    out: Float[Tensor, "items head rows n_key"],
) -> None:
    """Write scale * x_i (y_j + a_ij)^T of every edge to `out`."""
    if table is None:
        torch.mul(x @ y.mT, scale, out=out)
        return
    torch.gather(x @ (table * scale).mT, -1, column, out=out)
    add_product(out, x, y.mT, scale)


def sum_by_label(
    weights: Float[Tensor, "items head rows n_key"],
    column: Int64[Tensor, "items head rows n_key"],
    out: Float[Tensor, "items head rows n_column"],
) -> Float[Tensor, "items head rows n_column"]:
    """Return the weights of each query, summed by label."""
    return out.zero_().scatter_add_(-1, column, weights)


def add_product(to: Tensor, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
    """Add scale * x y of each item and head."""
    if to.is_contiguous():
        to.flatten(0, 1).baddbmm_(x.flatten(0, 1), y.flatten(0, 1), alpha=scale)
    else:
        to.add_(x @ y, alpha=scale)


def sum_over_queries(
    weights: Float[Tensor, "items head rows n_key"],
    x: Float[Tensor, "items head rows d_head"],
    scale: float,
    into: Float[Tensor, "items head n_key d_head"],
    rows: slice,
) -> None:
    """Write scale * sum_i w_ij x_i of every key j, or add it to that of earlier queries."""
    of_rows = weights.mT @ x
    if rows.start == 0:
        torch.mul(of_rows, scale, out=into)
    else:
        into.add_(of_rows, alpha=scale)


def add_to_table(
    grad_table: Float[Tensor, "*head n_column d_head"],
    sums: Float[Tensor, "items head rows n_column"],
    x: Float[Tensor, "items head rows d_head"],
) -> None:
    """Add sum_i s_il x_i of every label l."""
    grad_table += (sums.mT @ x).sum((0, 1) if grad_table.dim() == 2 else 0)


_chunked_gather = register(
    "chunked_gather_v1",
    Arguments,
    forward=_forward,
    backward=_backward,
    fake=_fake,
    composite=_composite,
    n_results=3,
)

BACKEND = Backend("chunked_gather", supports, cost, run)
