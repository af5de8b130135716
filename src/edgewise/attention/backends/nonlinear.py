"""Compatibilities other than the dot product: their logits need a vector for every edge.

That is n_query * n_key * d_head numbers per head, 2 GiB for 8 heads of 64 and a sequence of 1,024.
Here a few tensors of `BLOCK` numbers are held at a time, or of as many as the edges of one query
have; the backward pass computes them again.

`Additive` and `Gated` have a hand-written backward pass. Other classes are differentiated by
autograd, with activation checkpointing.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgewise.attention import composite, edge_ops, private
from edgewise.attention.backends.base import Backend
from edgewise.attention.compatibility import Additive, Compatibility, Gated
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import register

BLOCK = 2**20


def supports(inputs: AttentionInputs) -> str | None:
    if inputs.is_dot_product:
        return "is for compatibilities other than the dot product; got compatibility=None"
    return None


def run(inputs: AttentionInputs) -> Float[Tensor, "batch head n_query d_head"]:
    """Return equation 3 with the logits of another compatibility."""
    graph, dtype = inputs.relations, inputs.query.dtype
    # Float32: gradients are sums over edges, block by block.
    inputs = inputs.cast(composite.accumulation_dtype(dtype))
    logits = edge_logits(inputs)
    if isinstance(graph, EdgeList):
        return edge_ops.attend(inputs, graph, logits).to(dtype)
    weights = composite.masked_softmax(logits, inputs.allowed())
    return composite.weighted_sum(inputs, weights, composite.edge_labels(inputs)).to(dtype)


def edge_logits(inputs: AttentionInputs) -> Float[Tensor, "batch head *edges"]:
    """Return the logits of all edges: of every query and key, or of a list."""
    relations, vectors, table, labels, rows, columns = inputs.relations, *[None] * 5
    if inputs.key_table is not None:
        table = edge_ops.with_zero_row(inputs.key_table)
    if isinstance(relations, EdgeList):
        labels, rows, columns = relations.sorted_labels, *relations.edges[:2]
    elif relations is not None and table is not None:
        labels = relations.labels_between(inputs.n_query, inputs.n_key, inputs.query.device)
        labels = labels if labels.dim() == 3 else labels[None]
    elif relations is not None:
        vectors = relations.vectors("edge_key")
    compatibility = inputs.compatibility
    u = compatibility.u if isinstance(compatibility, Additive) else None
    ends = inputs.query, inputs.key, vectors, table, u, labels, rows, columns
    arguments = Arguments(*ends, inputs.scale)
    if isinstance(compatibility, Additive | Gated):
        return _nonlinear_logits(arguments)
    return checkpointed_logits(compatibility, arguments)


class Arguments(NamedTuple):
    """The arguments of the operator. vectors: of every edge, instead of a table and labels.

    u: of `Additive`; None: `Gated`. rows, columns: queries and keys of a list of edges; None: every
    query and key.
    """

    query: Float[Tensor, "batch head n_query d_head"]
    key: Float[Tensor, "batch head n_key d_head"]
    vectors: Float[Tensor, "#batch #head n_query n_key d_head"] | None
    table: Float[Tensor, "*head row d_head"] | None
    u: Float[Tensor, "*head d_head"] | None
    labels: Int[Tensor, "..."] | None
    rows: Int64[Tensor, " edge"] | None
    columns: Int64[Tensor, " edge"] | None
    scale: float

    @property
    def compatibility(self) -> Additive | Gated:
        return Gated() if self.u is None else Additive(self.u)

    def whole(self) -> "Block":
        """Return all edges as one block."""
        return self.block(slice(None), slice(None))

    def block(self, items: slice, part: slice) -> "Block":
        """Return some edges of some items: of these queries, or these edges of the list."""
        query, key, edge_key, index = self.query[items], self.key[items], None, None
        if self.table is not None and self.labels is not None:
            if self.rows is not None:
                labels = self.labels[None, None, part]
            else:
                labels = self.labels if len(self.labels) == 1 else self.labels[items]
                labels = labels[:, None, part]
            index = flat_index(self.table, labels)
            edge_key = self.table.flatten(0, -2)[index]
        elif self.vectors is not None:
            vectors = self.vectors if len(self.vectors) == 1 else self.vectors[items]
            edge_key = vectors[:, :, part]
        if self.rows is not None and self.columns is not None:
            query, key = query[:, :, self.rows[part]], key[:, :, self.columns[part]]
        else:
            query, key = query[:, :, part].unsqueeze(3), key.unsqueeze(2)
        return Block(items, part, query, key, edge_key, index)

    def blocks(self) -> Iterator["Block"]:
        """Yield all edges, as many at a time as `BLOCK` allows."""
        batch, heads, n_query, d_head = self.query.shape
        is_list = self.rows is not None
        size = heads * d_head * (1 if is_list else self.key.shape[2])
        n_rows = n_query if self.rows is None else self.rows.shape[0]
        items_at_once = max(1, min(batch, BLOCK // max(1, size)))
        rows_at_once = max(1, BLOCK // max(1, size * items_at_once))
        for item in range(0, batch, items_at_once):
            for row in range(0, n_rows, rows_at_once):
                part = slice(row, min(n_rows, row + rows_at_once))
                yield self.block(slice(item, item + items_at_once), part)


class Block(NamedTuple):
    """Some edges: [items, head, queries, n_key, d_head], or [items, head, edges, d_head]."""

    items: slice
    part: slice
    query: Tensor
    key: Tensor
    edge_key: Tensor | None
    table_index: Tensor | None  # row of each edge in the flattened table

    @property
    def ends(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.query, self.key, self.edge_key


def flat_index(table: Tensor, labels: Int[Tensor, "items 1 *edges"]) -> Int64[Tensor, "..."]:
    """Return the row of each edge in the tables of all heads, one after the other."""
    size = table.shape[-2]
    index = labels.long().masked_fill(labels < 0, size - 1)  # the row of zeros
    if table.dim() == 2:
        return index
    heads = torch.arange(table.shape[0], device=labels.device)
    return index + size * heads.view(-1, *[1] * (labels.dim() - 2))


def checkpointed_logits(compatibility: Compatibility, a: Arguments) -> Tensor:
    """Return logits that autograd computes again, block by block, in the backward pass."""

    def logits(query: Tensor, key: Tensor, edge_key: Tensor | None) -> Tensor:
        return compatibility.logits(query, key, edge_key, a.scale)

    by_item: dict[int, list[Tensor]] = {}
    for block in a.blocks():
        if private.is_transforming():  # torch.func does not support checkpointing
            part = logits(*block.ends)
        else:
            part = checkpoint(logits, *block.ends, use_reentrant=False)
        by_item.setdefault(block.items.start, []).append(part)
    return torch.cat([torch.cat(parts, dim=2) for parts in by_item.values()])


def _fake(a: Arguments) -> tuple[Tensor]:
    batch, heads, n_query, _ = a.query.shape
    edges = (n_query, a.key.shape[2]) if a.rows is None else (a.rows.shape[0],)
    return (a.query.new_empty(batch, heads, *edges),)


def _forward(a: Arguments) -> tuple[Tensor]:
    (logits,) = _fake(a)
    for block in a.blocks():
        part = a.compatibility.logits(*block.ends, a.scale)
        logits[block.items, :, block.part] = part
    return (logits,)


def _backward(a: Arguments, grad: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, vectors, table and u (empty if there is none)."""
    grads = [
        a.query.new_empty(0)
        if x is None
        else torch.zeros_like(x, memory_format=torch.contiguous_format)
        for x in a[:5]
    ]
    grad_query, grad_key, grad_vectors, grad_table, grad_u = grads
    for block in a.blocks():
        items, part = block.items, block.part
        found = a.compatibility.gradients(*block.ends, a.scale, grad[items, :, part])
        if a.rows is not None and a.columns is not None:
            grad_query[items].index_add_(2, a.rows[part], found.query)
            grad_key[items].index_add_(2, a.columns[part], found.key)
        else:
            torch.sum(found.query, 3, out=grad_query[items, :, part])
            grad_key[items] += found.key.sum(2)
        if found.u is not None:
            grad_u += found.u
        if block.edge_key is None or found.edge_key is None:
            continue
        by_edge = found.edge_key.sum_to_size(block.edge_key.shape)
        if block.table_index is not None:
            rows = grad_table.view(-1, grad_table.shape[-1])
            rows.index_add_(0, block.table_index.flatten(), by_edge.reshape(-1, rows.shape[1]))
        else:
            vectors = grad_vectors if len(grad_vectors) == 1 else grad_vectors[items]
            vectors[:, :, part] += by_edge
    return tuple(grads)


_nonlinear_logits = register(
    "nonlinear_logits_v1",
    Arguments,
    forward=_forward,
    backward=_backward,
    fake=_fake,
    composite=lambda a: a.compatibility.logits(*a.whole().ends, a.scale),
)

BACKEND = Backend("nonlinear", supports, cost=lambda inputs: 1.0, run=run)
