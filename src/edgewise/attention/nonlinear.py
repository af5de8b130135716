"""Logits of compatibilities that are no product, some edges at a time, computed again backward.

They need a vector for every edge: n_query * n_key * d_head numbers a head, 2 GiB for 8 heads of 64
and a sequence of 1,024. Here some tensors of `BLOCK` numbers are held at a time, or of as many as
the edges of one query have.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from edgewise.attention.compatibility import (
    Additive,
    Compatibility,
    Gated,
    edge_gradients,
    edge_logits,
    spread_u,
)
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.operators import operator
from edgewise.attention.reference import with_zeros
from edgewise.attention.relations import EdgeVectors, Relations, labels_of, of_full_rank

BLOCK = 2**20
Given = Tensor | None


def dense_logits(
    compatibility: Compatibility,
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    relations: Relations | None,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    scale: float,
) -> Float[Tensor, "batch head n_query n_key"]:
    """Of every query and key."""
    vectors = table = labels = None
    if isinstance(relations, EdgeVectors):
        vectors = None if relations.edge_key is None else of_full_rank(relations.edge_key)
    elif relations is not None and key_table is not None:
        assert not isinstance(relations, EdgeList)
        labels = labels_of(relations, query.shape[2], key.shape[2], query.device)
        labels = labels if labels.dim() == 3 else labels[None]
        table = with_zeros(key_table)
    u = compatibility.u if isinstance(compatibility, Additive) else None
    return _dense(query, key, vectors, table, u, labels, scale)


def edge_list_logits(
    compatibility: Compatibility,
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    graph: EdgeList,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    scale: float,
) -> Float[Tensor, "batch head edge"]:
    """Of every edge of a list, in the order of its queries."""
    rows, columns, _ = graph.by_query
    table = None if key_table is None else with_zeros(key_table)
    u = compatibility.u if isinstance(compatibility, Additive) else None
    return _listed(query, key, table, u, rows, columns, graph.sorted_labels, scale)


class Block(NamedTuple):
    """Some edges of some items, all of one rank."""

    items: slice
    rows: slice  # queries with all keys, or edges of a list
    query: Tensor
    key: Tensor
    edge_key: Given

    def logits(self, u: Given, scale: float) -> Tensor:
        spread = None if u is None else spread_u(u, self.query.dim())
        ends = self.query, self.key, self.edge_key
        return edge_logits(_compatibility(u), *ends, spread, scale)

    def gradients(self, u: Given, scale: float, grad: Tensor) -> "Gradients":
        spread = None if u is None else spread_u(u, self.query.dim())
        ends = self.query, self.key, self.edge_key
        found = edge_gradients(_compatibility(u), *ends, spread, scale, grad)
        of_query, of_key, of_edge, of_u = found
        if self.edge_key is not None:
            of_edge = of_edge.sum_to_size(self.edge_key.shape)
        if u is not None and spread is not None:
            of_u = of_u.sum_to_size(spread.shape).view(u.shape)
        return Gradients(of_query, of_key, of_edge, of_u)


class Gradients(NamedTuple):
    """Of query and key for each edge; of the vectors, and of u, summed where one is of several."""

    query: Tensor
    key: Tensor
    edge_key: Tensor
    u: Tensor


def _compatibility(u: Given) -> Compatibility:
    return Gated() if u is None else Additive(u)


def _blocks(batch: int, rows: int, numbers: int) -> Iterator[tuple[slice, slice]]:
    """Items and rows at a time, where a row of an item has so many numbers."""
    n_items = max(1, min(batch, BLOCK // max(1, numbers)))
    n_rows = max(1, BLOCK // max(1, numbers * n_items))
    for item in range(0, batch, n_items):
        for row in range(0, rows, n_rows):
            yield slice(item, item + n_items), slice(row, min(rows, row + n_rows))


def _of_items(x: Tensor, items: slice) -> Tensor:
    return x if len(x) == 1 else x[items]


def _row_index(table: Tensor, labels: Int64[Tensor, "items head *edges"]) -> Int64[Tensor, "..."]:
    """The row of each edge in the tables of all heads, laid one after the other."""
    size = table.shape[-2]
    index = labels.masked_fill(labels < 0, size - 1)  # the row of zeros
    if table.dim() == 2:
        return index
    heads = torch.arange(table.shape[0], device=labels.device)
    return index + size * heads.view(-1, *[1] * (labels.dim() - 2))


def _vectors_of(table: Tensor, labels: Int64[Tensor, "items head *edges"]) -> Tensor:
    return table.flatten(0, -2)[_row_index(table, labels)]


def _add_rows(of_table: Tensor, labels: Tensor, by_edge: Tensor) -> None:
    """Add the gradients of edges to the rows of their labels."""
    flat = of_table.view(-1, of_table.shape[-1])
    index = _row_index(of_table, labels)
    flat.index_add_(0, index.flatten(), by_edge.reshape(-1, by_edge.shape[-1]))


def _zeros(given: Given, like: Tensor) -> Tensor:
    if given is None:
        return like.new_empty(0)
    return torch.zeros_like(given, memory_format=torch.contiguous_format)


# Every query and key: a block is some queries with all keys, [items, head, rows, n_key, d_head].


def _dense_blocks(
    query: Tensor, key: Tensor, vectors: Given, table: Given, labels: Given
) -> Iterator[Block]:
    for items, rows in _blocks(query.shape[0], query.shape[2], key[0].numel()):
        edge_key = None
        if vectors is not None:
            edge_key = _of_items(vectors, items)[:, :, rows]
        elif table is not None and labels is not None:
            edge_key = _vectors_of(table, _of_items(labels, items)[:, None, rows])
        queries, keys = query[items, :, rows].unsqueeze(3), key[items].unsqueeze(2)
        yield Block(items, rows, queries, keys, edge_key)


def _dense_forward(
    query: Tensor, key: Tensor, vectors: Given, table: Given, u: Given, labels: Given, scale: float
) -> tuple[Tensor]:
    logits = query.new_empty(*query.shape[:3], key.shape[2])
    for block in _dense_blocks(query, key, vectors, table, labels):
        logits[block.items, :, block.rows] = block.logits(u, scale)
    return (logits,)


def _dense_backward(
    query: Tensor,
    key: Tensor,
    vectors: Given,
    table: Given,
    u: Given,
    labels: Given,
    scale: float,
    grad: Tensor,
) -> tuple[Tensor, ...]:
    of_query, of_key = torch.empty_like(query), torch.zeros_like(key)
    of_vectors, of_table, of_u = (_zeros(x, query) for x in (vectors, table, u))
    for block in _dense_blocks(query, key, vectors, table, labels):
        items, rows = block.items, block.rows
        found = block.gradients(u, scale, grad[items, :, rows])
        of_query[items, :, rows] = found.query.sum(3)
        of_key[items] += found.key.sum(2)
        if u is not None:
            of_u += found.u
        if vectors is not None:
            _of_items(of_vectors, items)[:, :, rows] += found.edge_key
        elif labels is not None:
            _add_rows(of_table, _of_items(labels, items)[:, None, rows], found.edge_key)
    return of_query, of_key, of_vectors, of_table, of_u


_dense = operator(
    "nonlinear_logits",
    "Tensor query, Tensor key, Tensor? vectors, Tensor? table, Tensor? u, Tensor? labels",
    "float scale",
    _dense_forward,
    _dense_backward,
    lambda query, key, *rest: (query.new_empty(*query.shape[:3], key.shape[2]),),
)


# A list of edges: a block is some of them, [items, head, rows, d_head].


def _listed_blocks(
    query: Tensor, key: Tensor, table: Given, rows: Tensor, columns: Tensor, labels: Tensor
) -> Iterator[Block]:
    batch, heads, _, d_head = query.shape
    for items, part in _blocks(batch, len(rows), heads * d_head):
        edge_key = None if table is None else _vectors_of(table, labels[None, None, part])
        queries, keys = query[items][:, :, rows[part]], key[items][:, :, columns[part]]
        yield Block(items, part, queries, keys, edge_key)


def _listed_forward(
    query: Tensor,
    key: Tensor,
    table: Given,
    u: Given,
    rows: Tensor,
    columns: Tensor,
    labels: Tensor,
    scale: float,
) -> tuple[Tensor]:
    logits = query.new_empty(*query.shape[:2], len(rows))
    for block in _listed_blocks(query, key, table, rows, columns, labels):
        logits[block.items, :, block.rows] = block.logits(u, scale)
    return (logits,)


def _listed_backward(
    query: Tensor,
    key: Tensor,
    table: Given,
    u: Given,
    rows: Tensor,
    columns: Tensor,
    labels: Tensor,
    scale: float,
    grad: Tensor,
) -> tuple[Tensor, ...]:
    of_query, of_key = torch.zeros_like(query), torch.zeros_like(key)
    of_table, of_u = (_zeros(x, query) for x in (table, u))
    for block in _listed_blocks(query, key, table, rows, columns, labels):
        items, part = block.items, block.rows
        found = block.gradients(u, scale, grad[items, :, part])
        of_query[items].index_add_(2, rows[part], found.query)
        of_key[items].index_add_(2, columns[part], found.key)
        if u is not None:
            of_u += found.u
        if table is not None:
            _add_rows(of_table, labels[None, None, part], found.edge_key)
    return of_query, of_key, of_table, of_u


_listed = operator(
    "nonlinear_edge_logits",
    "Tensor query, Tensor key, Tensor? table, Tensor? u, Tensor rows, Tensor columns, "
    "Tensor labels",
    "float scale",
    _listed_forward,
    _listed_backward,
    lambda query, key, table, u, rows, *rest: (query.new_empty(*query.shape[:2], rows.shape[0]),),
    n_differentiable=4,
)
