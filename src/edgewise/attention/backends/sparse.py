"""Attention along a list of edges: time O(edges * heads * d_head), memory O(edges * heads).

The labels are one more graph, from queries to rows of a table, so there is no vector for each edge
and nothing for each (query, label).
"""

from edgewise.attention import edge_ops
from edgewise.attention.backends.base import Backend, named, why_not_dot_product
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.shapes import Queries


def supports(inputs: AttentionInputs) -> str | None:
    if not isinstance(inputs.relations, EdgeList):
        return f"needs an EdgeList; got relations={named(inputs.relations)}"
    return why_not_dot_product(inputs)


def run(inputs: AttentionInputs) -> Queries:
    """Compute attention along the edges by equations 3 and 5."""
    graph = inputs.relations
    assert isinstance(graph, EdgeList)
    batch, heads = inputs.query.shape[:2]
    query, key = inputs.query.flatten(0, 1), inputs.key.flatten(0, 1)
    logits = edge_ops.edge_products(query, key, graph.edges)
    if inputs.key_table is not None:
        rows = edge_ops.label_rows(graph, inputs.key_table, batch)
        logits = logits + edge_ops.edge_products(query, *rows)
    logits = (logits * inputs.scale).unflatten(0, (batch, heads))
    return edge_ops.attend(inputs, graph, logits)


BACKEND = Backend("sparse", supports, cost=lambda inputs: 1.0, run=run, in_float32=True)
