"""Compatibilities other than the dot product: their logits need a vector for every edge.

That is n_query * n_key * d_head numbers per head, 2 GiB for 8 heads of 64 and a sequence of 1,024.
Eager code holds a few tensors of `BLOCK` numbers at a time, or of as many as the edges of one query
have, and computes them again in the backward pass. The compiler fuses them.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from edgewise.attention import composite, edge_ops, private
from edgewise.attention.backends.base import Backend
from edgewise.attention.compatibility import Compatibility
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import autograd_gradients, is_float
from edgewise.attention.shapes import EdgeIndex, EdgeVectorTensor, Keys, Queries, Table

BLOCK = 2**20

EdgeLogits = Float[Tensor, "batch head *edges"]


def supports(inputs: AttentionInputs) -> str | None:
    if inputs.is_dot_product:
        return "is for compatibilities other than the dot product; got compatibility=None"
    return None


def run(inputs: AttentionInputs) -> Queries:
    """Return equation 3 with the logits of another compatibility."""
    graph, dtype = inputs.relations, inputs.query.dtype
    # Float32: gradients are sums over edges, block by block.
    inputs = inputs.cast(composite.accumulation_dtype(dtype))
    logits = edge_logits(inputs)
    if isinstance(graph, EdgeList):
        return edge_ops.attend(inputs, graph, logits).to(dtype)
    weights = composite.masked_softmax(logits, inputs.allowed())
    return composite.weighted_sum(inputs, weights, composite.edge_labels(inputs)).to(dtype)


def edge_logits(inputs: AttentionInputs) -> EdgeLogits:
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
    ends = Ends(inputs.query, inputs.key, vectors, table, labels, rows, columns)
    compatibility = inputs.compatibility
    if torch.compiler.is_compiling() or private.is_transforming():
        return compatibility.logits(*ends.block()[:3], inputs.scale)
    parameters = [getattr(compatibility, field.name) for field in fields(compatibility)]  # type: ignore[arg-type]
    logits: Tensor = _RecomputedLogits.apply(  # type: ignore[no-untyped-call]
        type(compatibility), inputs.scale, *ends, *parameters
    )
    return logits


class Ends(NamedTuple):
    """What the logits of edges are made of.

    vectors: of every edge, instead of a table and labels. rows, columns: queries and keys of a list
    of edges; None: every query and key.
    """

    query: Queries
    key: Keys
    vectors: EdgeVectorTensor | None
    table: Table | None  # with a row of zeros at its end
    labels: Int[Tensor, "..."] | None
    rows: EdgeIndex | None
    columns: EdgeIndex | None

    def block(self, items: slice = slice(None), part: slice = slice(None)) -> "Block":
        """Return some queries of some items, or edges of the list."""
        query, key, edge_key, index = self.query[items], self.key[items], None, None
        if self.table is not None and self.labels is not None:
            if self.rows is not None:
                labels = self.labels[None, None, part]
            else:
                labels = self.labels if len(self.labels) == 1 else self.labels[items]
                labels = labels[:, None, part]
            index = flat_index(self.table, labels)
            edge_key = embedding(index, self.table.flatten(0, -2))
        elif self.vectors is not None:
            vectors = self.vectors if len(self.vectors) == 1 else self.vectors[items]
            edge_key = vectors[:, :, part]
        if self.rows is not None and self.columns is not None:
            return Block(
                query[:, :, self.rows[part]], key[:, :, self.columns[part]], edge_key, index
            )
        return Block(query[:, :, part].unsqueeze(3), key.unsqueeze(2), edge_key, index)

    def add_gradients(
        self, of: "Ends", items: slice, part: slice, block: "Block", grads: Iterator[Tensor]
    ) -> None:
        """Add the gradients of a block of `of` to these, which have its shapes."""
        grad_query, grad_key = next(grads), next(grads)
        if of.rows is not None and of.columns is not None:
            self.query[items].index_add_(2, of.rows[part], grad_query)
            self.key[items].index_add_(2, of.columns[part], grad_key)
        else:
            self.query[items, :, part] += grad_query.squeeze(3)
            self.key[items] += grad_key.squeeze(2)
        if block.index is not None and self.table is not None:
            rows = self.table.view(-1, self.table.shape[-1])
            rows.index_add_(0, block.index.flatten(), next(grads).flatten(0, -2))
        elif self.vectors is not None:
            vectors = self.vectors if len(self.vectors) == 1 else self.vectors[items]
            vectors[:, :, part] += next(grads)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield the items and queries (or edges) to compute at a time."""
        batch, heads, n_query, d_head = self.query.shape
        n_rows = n_query if self.rows is None else self.rows.shape[0]
        size = heads * d_head * (self.key.shape[2] if self.rows is None else 1)
        items_at_once = max(1, min(batch, BLOCK // max(1, size)))
        rows_at_once = max(1, BLOCK // max(1, size * items_at_once))
        for item in range(0, batch, items_at_once):
            for row in range(0, n_rows, rows_at_once):
                part = slice(row, min(n_rows, row + rows_at_once))
                yield slice(item, item + items_at_once), part


class Block(NamedTuple):
    """Ends that broadcast to [items, head, queries, n_key, d_head] or [items, head, edges, d_head].

    index: the row of each edge in the flattened table.
    """

    query: Tensor
    key: Tensor
    edge_key: Tensor | None
    index: Int[Tensor, "..."] | None  # type: ignore[assignment]


def flat_index(table: Table, labels: Int[Tensor, "items 1 *edges"]) -> Int[Tensor, "..."]:
    """Return the row of each edge in the tables of all heads, one after the other."""
    size = table.shape[-2]
    index = labels.long().masked_fill(labels < 0, size - 1)  # the row of zeros
    if table.dim() == 2:
        return index
    heads = torch.arange(table.shape[0], device=labels.device)
    return index + size * heads.view(-1, *[1] * (labels.dim() - 2))


class _RecomputedLogits(torch.autograd.Function):
    """Logits block by block, computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, cls: type[Compatibility], scale: float, *tensors: Any) -> EdgeLogits:
        ctx.save_for_backward(*tensors)
        ctx.cls, ctx.scale = cls, scale
        ends, compatibility = Ends(*tensors[:7]), cls(*tensors[7:])
        shape = (ends.query.shape[2], ends.key.shape[2]) if ends.rows is None else ends.rows.shape
        logits = ends.query.new_empty(*ends.query.shape[:2], *shape)
        for items, part in ends.blocks():
            logits[items, :, part] = compatibility.logits(*ends.block(items, part)[:3], scale)
        return logits

    @staticmethod
    def backward(ctx: Any, grad: EdgeLogits) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled() or private.is_batched(grad):
            return (
                None,
                None,
                *autograd_gradients(
                    lambda *x: ctx.cls(*x[7:]).logits(*Ends(*x[:7]).block()[:3], ctx.scale),
                    tensors,
                    grad,
                ),
            )
        totals: list[Any] = [torch.zeros_like(x) if is_float(x) else None for x in tensors]
        ends, of_ends, of_parameters = Ends(*tensors[:7]), Ends(*totals[:7]), totals[7:]
        parameters = [x.detach().requires_grad_() for x in tensors[7:]]
        for items, part in ends.blocks():
            block = ends.block(items, part)
            leaves = [x.detach().requires_grad_() for x in block[:3] if x is not None]
            with torch.enable_grad():
                logits = ctx.cls(*parameters).logits(
                    *leaves, *[None] * (3 - len(leaves)), ctx.scale
                )
            grads = iter(torch.autograd.grad(logits, [*leaves, *parameters], grad[items, :, part]))
            of_ends.add_gradients(ends, items, part, block, grads)
            for total, of_block in zip(of_parameters, grads, strict=True):
                total += of_block
        return None, None, *totals


BACKEND = Backend("nonlinear", supports, cost=lambda inputs: 1.0, run=run)
