"""Gather and scatter by label, chunk by chunk, with a hand-written backward pass.

The logits of a chunk stay in the cache; only the weights are held for every edge. A chunk is some
items, else some heads of an item, else some queries of one head, so that its matrices are adjacent.
Edges without a label have a column after the last, whose vector is zero.
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

CHUNK = 2**19  # logits computed at a time
MIN_ROWS = 64  # queries of a chunk, at least: each chunk adds to the gradients of all keys

Part = tuple[slice, slice, slice]  # items, heads and queries of a chunk


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
    arguments = Arguments(
        *(inputs.query.contiguous(), inputs.key.contiguous(), inputs.value.contiguous()),
        *(inputs.key_table, inputs.value_table, inputs.allowed()),
        *(labels, relations.has_unlabelled, inputs.scale),
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

    def tables(self) -> list[Float[Tensor, "*head n_column d_head"] | None]:
        """Return the tables with rows of zeros at their ends, that of keys times the scale."""
        key_table = None if self.key_table is None else self.key_table * self.scale
        return [
            None if x is None else pad(x, (0, 0, 0, self.n_column - x.shape[-2]))
            for x in (key_table, self.value_table)
        ]


def _fake(a: Arguments) -> tuple[Tensor, ...]:
    sizes, n_column = a.query.shape[:3], 0 if a.value_table is None else a.n_column
    weights, sums = (a.query.new_empty(*sizes, n) for n in (a.key.shape[2], n_column))
    return torch.empty_like(a.query), weights, sums


def _forward(a: Arguments) -> tuple[Tensor, ...]:
    """Return the output, the weights, and the weights summed by label."""
    output, weights, sums = _fake(a)
    tables = a.tables()
    hidden = None if a.allowed is None else (~a.allowed).expand(weights.shape)
    for part, column in chunks(a):
        groups = part[:2]
        key_table, value_table = (of_heads(x, part) for x in tables)
        w, z = weights[part], output[part]
        edge_products(a.query[part], a.key[groups], key_table, column, a.scale, out=w)
        if hidden is not None:
            w.masked_fill_(hidden[part], -torch.inf)
        torch.softmax(w, -1, out=w)
        if hidden is not None:
            w.masked_fill_(hidden[part], 0.0)
        if value_table is not None:
            z.copy_(sum_by_label(w, column, out=sums[part]) @ value_table)
        multiply(w, a.value[groups], out=z, adds=value_table is not None)
    return output, weights, sums


def _backward(
    a: Arguments,
    grad: Queries,
    weights: EdgeMatrix,
    sums: Float[Tensor, "batch head n_query n_column"],
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value and the two tables (empty if there is none)."""
    grad_query, grad_key, grad_value = grads = [torch.empty_like(x) for x in a[:3]]
    tables = a.tables()
    grad_tables = [a.query.new_empty(0) if x is None else torch.zeros_like(x) for x in tables]
    grad, grad_w = grad.contiguous(), weights.new_empty(0)
    for part, column in chunks(a):
        groups, is_later = part[:2], part[2].start > 0
        key_table, value_table = (of_heads(x, part) for x in tables)
        q, g, w, grad_q = (x[part] for x in (a.query, grad, weights, grad_query))
        grad_w = grad_w if grad_w.shape == w.shape else w.new_empty(w.shape)
        edge_products(g, a.value[groups], value_table, column, 1.0, out=grad_w)
        if value_table is not None:
            add_to_table(grad_tables[1], sums[part], g, part)
        multiply(w.mT, g, out=grad_value[groups], adds=is_later)
        private.softmax_backward_(grad_w, w)
        if key_table is not None:
            by_label = sum_by_label(grad_w, column, w.new_empty(*w.shape[:3], a.n_column))
            grad_q.copy_(by_label @ key_table)
            add_to_table(grad_tables[0], by_label, q, part)
        multiply(grad_w, a.key[groups], a.scale, out=grad_q, adds=key_table is not None)
        multiply(grad_w.mT, q, a.scale, out=grad_key[groups], adds=is_later)
    grad_tables[0] *= a.scale
    of_tables = zip(a[3:5], grad_tables, strict=True)
    return *grads, *(
        x if t is None else x[..., : t.shape[-2], :].contiguous() for t, x in of_tables
    )


def _composite(a: Arguments) -> Tensor:
    relations = EdgeLabels.unchecked(a.labels)
    tensors = a.query, a.key, a.value, relations, a.key_table, a.value_table, a.allowed
    return composite.attention(AttentionInputs(*tensors, scale=a.scale))


def chunks(a: Arguments) -> Iterator[tuple[Part, Int64[Tensor, "items heads rows n_key"]]]:
    """Yield the items, heads and queries of each chunk, and the column of each of its edges."""
    (batch, heads, n_query), n_key = a.query.shape[:3], a.key.shape[2]
    groups = CHUNK // (n_query * n_key)
    n_rows = n_query if groups else max(MIN_ROWS, CHUNK // n_key)
    for items in slices(batch, groups // heads):
        for rows in slices(n_query, n_rows):
            labels = a.labels[items, rows] if a.labels.dim() == 3 else a.labels[None, rows]
            column = labels.long()
            if a.has_unlabelled:
                column = column.masked_fill(column < 0, a.n_column - 1)
            for some in slices(heads, groups):
                sizes = items.stop - items.start, some.stop - some.start
                yield (items, some, rows), column[:, None].expand(*sizes, -1, -1)


def slices(size: int, step: int) -> list[slice]:
    step = max(1, step)
    return [slice(start, min(size, start + step)) for start in range(0, size, step)]


def of_heads(table: Tensor | None, part: Part) -> Tensor | None:
    """Return the tables of the heads of a chunk, or the table of all."""
    return table if table is None or table.dim() == 2 else table[part[1]]


def multiply(x: Tensor, y: Tensor, scale: float = 1.0, *, out: Tensor, adds: bool) -> None:
    """Write scale * x y of each item and head to `out`, or add it."""
    out.flatten(0, 1).baddbmm_(x.flatten(0, 1), y.flatten(0, 1), beta=int(adds), alpha=scale)


def edge_products(
    x: Float[Tensor, "items heads rows d_head"],
    y: Float[Tensor, "items heads n_key d_head"],
    table: Float[Tensor, "*heads n_column d_head"] | None,
    column: Int64[Tensor, "items heads rows n_key"],
    scale: float,
    out: Float[Tensor, "items heads rows n_key"],
) -> None:
    """Write x_i (scale * y_j + a_ij)^T of every edge to `out`."""
    if table is not None:
        torch.gather(x @ table.mT, -1, column, out=out)
    multiply(x, y.mT, scale, out=out, adds=table is not None)


def sum_by_label(
    weights: Float[Tensor, "items heads rows n_key"],
    column: Int64[Tensor, "items heads rows n_key"],
    out: Float[Tensor, "items heads rows n_column"],
) -> Float[Tensor, "items heads rows n_column"]:
    """Return the weights of each query, summed by label."""
    return out.zero_().scatter_add_(-1, column, weights)


def add_to_table(
    grad_table: Float[Tensor, "*head n_column d_head"],
    sums: Float[Tensor, "items heads rows n_column"],
    x: Float[Tensor, "items heads rows d_head"],
    part: Part,
) -> None:
    """Add sum_i s_il x_i of every label l."""
    if grad_table.dim() == 2:
        grad_table += (sums.mT @ x).sum((0, 1))
    else:
        grad_table[part[1]] += (sums.mT @ x).sum(0)


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
