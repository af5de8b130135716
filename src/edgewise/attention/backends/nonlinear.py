"""Compatibilities other than the dot product: their logits need a vector for every edge.

That is n_query * n_key * d_head numbers per head, 2 GiB for 8 heads of 64 and a sequence of 1,024.
Eager code computes the logits in blocks of queries, or of edges of a list, whose vectors have
`BLOCK` numbers or those of one query; the backward pass computes each block again, unless there is
only one. The compiler fuses the vectors away.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from edgewise.attention import composite, edge_ops, private
from edgewise.attention.backends.base import Backend
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.shapes import Queries, Table

BLOCK = 2**20

EdgeLogits = Float[Tensor, "batch head *edges"]


def supports(inputs: AttentionInputs) -> str | None:
    if inputs.is_dot_product:
        return "does not support the dot product (Gated without key vectors is the dot product)"
    return None


def run(inputs: AttentionInputs) -> Queries:
    """Compute attention by equation 3 with the logits of another compatibility."""
    graph, logits = inputs.relations, edge_logits(inputs)
    if isinstance(graph, EdgeList):
        return edge_ops.attend(inputs, graph, logits)
    weights = composite.masked_softmax(logits, inputs.allowed())
    return composite.weighted_sum(inputs, weights, inputs.labels())


def edge_logits(inputs: AttentionInputs) -> EdgeLogits:
    """Return the logits of all edges: of every query and key, or of a list."""
    relations, compatibility, table = inputs.relations, inputs.compatibility, inputs.key_table
    table = None if table is None else edge_ops.with_zero_row(table)
    labels = vectors = edges = None
    # Dimension 2 of all tensors is the one to split: of queries, or of edges of a list.
    query, key = inputs.query.unsqueeze(3), inputs.key.unsqueeze(2)
    if isinstance(relations, EdgeList):
        query = inputs.query.unsqueeze(2)
        labels = relations.sorted_labels[None, None]
        edges = torch.stack((relations.sorted_queries, relations.sorted_keys))[None]
    else:
        labels = None if table is None else inputs.labels()
        vectors = inputs.edge_vectors("edge_key")

    def block_logits(query: Tensor, key: Tensor, labels: Any, vectors: Any, edges: Any) -> Tensor:
        if edges is not None:
            rows, columns = edges[0]
            query = query.squeeze(2).index_select(2, rows)
            key = key.squeeze(2).index_select(2, columns)
        if labels is not None and table is not None:
            vectors = label_vectors(table, labels)
        return compatibility.logits(query, key, vectors, inputs.scale)

    tensors = query, key, labels, vectors, edges
    if torch.compiler.is_compiling() or private.is_transforming():
        return block_logits(*tensors)
    n_item, n_row = block_sizes(inputs)
    blocks = [list(split(items, n_row, 2)) for items in split(tensors, n_item, 0)]
    if len(blocks) == len(blocks[0]) == 1:
        return block_logits(*tensors)  # small enough to be kept
    options: Any = {"use_reentrant": False, "preserve_rng_state": False}
    by_item = [[checkpoint(block_logits, *block, **options) for block in items] for items in blocks]
    return torch.cat([torch.cat(logits, 2) for logits in by_item])


def label_vectors(
    table: Table, labels: Int[Tensor, "#items 1 rows *n_key"]
) -> Float[Tensor, "#items #head rows *n_key d_head"]:
    """Return the row of each label in the table; label -1 is the last row."""
    n_row = table.shape[-2]
    index = labels.long().remainder(n_row)
    if table.dim() == 3:
        starts = n_row * torch.arange(table.shape[0], device=table.device)
        index = index + starts.view(-1, *[1] * (labels.dim() - 2))
    return table.flatten(0, -2).index_select(0, index.flatten()).view(*index.shape, table.shape[-1])


def block_sizes(inputs: AttentionInputs) -> tuple[int, int]:
    """Return the numbers of items, and of queries or edges of a list, to compute at a time."""
    batch, heads, n_query, d_head = inputs.query.shape
    row_size, least_rows = heads * d_head * inputs.n_key, 1
    if isinstance(inputs.relations, EdgeList):
        # The gradients of a block of edges are as large as all nodes of its items.
        row_size, least_rows = heads * d_head, max(1, n_query, inputs.n_key)
    n_item = max(1, min(batch, BLOCK // max(1, row_size * least_rows)))
    return n_item, max(least_rows, BLOCK // max(1, row_size * n_item))


def split(tensors: Sequence[Tensor | None], size: int, dim: int) -> Iterator[tuple[Any, ...]]:
    """Yield parts of all tensors; those whose dimension is 1 are in every part."""
    parts = [(x,) if x is None or x.shape[dim] == 1 else x.split(size, dim) for x in tensors]
    count = max(map(len, parts))
    return zip(*(x if len(x) == count else x * count for x in parts), strict=True)


# In float32: gradients are sums over edges, block by block.
BACKEND = Backend("nonlinear", supports, cost=lambda inputs: 1.0, run=run, in_float32=True)
