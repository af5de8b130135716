"""Attention along a list of edges, O(edges * heads * d_head) in time and less in memory.

The two operations of `edge_operators` do it all: products of the vectors at both ends of each
edge, and weighted sums over the edges of each query. The labels are one more graph, from queries to
rows of a table, so there is no vector for each edge and nothing for each (query, label).

Groups are the batch * head independent problems; the graph is the same for each.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from edgewise.attention import nonlinear
from edgewise.attention.compatibility import Compatibility, in_dtype
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.edge_operators import edge_products, edge_sums
from edgewise.attention.reference import with_zeros


def attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    graph: EdgeList,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None,
    dropout: float,
    scale: float,
    compatibility: Compatibility | None,
) -> Float[Tensor, "batch head n_query d_head"]:
    """Equations 3 and 4 along the edges."""
    work = torch.promote_types(query.dtype, torch.float32)
    batch, heads, n_query, d_head = query.shape
    q, k, v = (x.to(work) for x in (query, key, value))
    tables = [None if x is None else x.to(work) for x in (key_table, value_table)]
    keys, values = (None if x is None else _of_groups(x, batch) for x in tables)
    edges = graph.by_query
    rows = edges.rows
    flat_q, flat_k, flat_v = (x.reshape(batch * heads, x.shape[2], d_head) for x in (q, k, v))
    if compatibility is None:
        logits = edge_products(flat_q, flat_k, edges)
        if keys is not None:
            logits = logits + edge_products(flat_q, keys, graph.by_label(keys.shape[1]))
        logits = logits * scale
    else:
        logits = nonlinear.edge_list_logits(
            in_dtype(compatibility, work), q, k, graph, tables[0], scale
        ).flatten(0, 1)
    weights = softmax_by_row(logits, rows, n_query)
    weights = torch.dropout(weights, dropout, train=True)
    output = edge_sums(weights, flat_v, edges, n_query)
    if values is not None:
        of_labels = graph.by_label(values.shape[1])
        output = output + edge_sums(weights, values, of_labels, n_query)
    return output.view(batch, heads, n_query, d_head).to(query.dtype)


def _of_groups(
    table: Float[Tensor, "*head n_label d_head"], batch: int
) -> Float[Tensor, "#group rows d_head"]:
    """A table for all groups, or one for each; the last row is for edges without a label."""
    padded = with_zeros(table)
    return padded[None] if padded.dim() == 2 else padded.repeat(batch, 1, 1)


def softmax_by_row(
    logits: Float[Tensor, "group edge"], rows: Int64[Tensor, " edge"], n_rows: int
) -> Float[Tensor, "group edge"]:
    """Softmax over the edges of each row."""
    groups = logits.shape[0]
    index = rows.expand(groups, -1)
    with torch.no_grad():
        peak = logits.new_full((groups, n_rows), -torch.inf).scatter_reduce(
            1, index, logits, "amax"
        )
    powers = (logits - peak.gather(1, index)).exp()
    totals = logits.new_zeros(groups, n_rows).scatter_add(1, index, powers)
    return powers / totals.gather(1, index)
