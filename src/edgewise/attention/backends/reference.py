"""The definition: equations 3 and 4 of the paper as written. Slow and obvious.

Every other backend is tested against this one. It holds a vector for every edge of every head and
sequence, so it is for small sizes; it consists of differentiable operators only, so it has
derivatives of any order and works under every transformation of PyTorch.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.attention.backends.base import Backend
from edgewise.attention.composite import masked_softmax
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.shapes import Queries, Table


def run(inputs: AttentionInputs) -> Queries:
    """Return z_i = sum_j alpha_ij (x_j W^V + a^V_ij), alpha the softmax of e_ij over j."""
    if isinstance(inputs.relations, EdgeList):
        return along_edges(inputs, inputs.relations)
    labels = inputs.labels()
    edge_key, edge_value = inputs.edge_vectors("edge_key"), inputs.edge_vectors("edge_value")
    if labels is not None and inputs.key_table is not None:
        edge_key = table_rows(inputs.key_table, labels[:, 0])
    if labels is not None and inputs.value_table is not None:
        edge_value = table_rows(inputs.value_table, labels[:, 0])

    # Eq. 4: e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(d_z), or another compatibility
    query, key = inputs.query.unsqueeze(3), inputs.key.unsqueeze(2)
    logits = inputs.compatibility.logits(query, key, edge_key, inputs.scale)
    weights = masked_softmax(logits, inputs.allowed())
    weights = torch.dropout(weights, inputs.dropout, train=True)

    # Eq. 3: z_i = sum_j alpha_ij (x_j W^V + a^V_ij)
    values = inputs.value.unsqueeze(2)
    values = values if edge_value is None else values + edge_value
    return torch.einsum("bhij,bhijd->bhid", weights, values.expand(*weights.shape, -1))


def table_rows(
    table: Table, labels: Int[Tensor, "#batch *edges"]
) -> Float[Tensor, "#batch #head *edges d_head"]:
    """Return a_ij = w[label of (i, j)] of every edge; zeros for label -1."""
    tables = table if table.dim() == 3 else table[None]
    return torch.nn.functional.pad(tables, (0, 0, 0, 1))[:, labels.long()].transpose(0, 1)


def along_edges(inputs: AttentionInputs, graph: EdgeList) -> Queries:
    """Return equation 3 where the softmax of query i is over the edges with query_index i."""
    query, key = inputs.query[:, :, graph.query_index], inputs.key[:, :, graph.key_index]
    values = inputs.value[:, :, graph.key_index]
    edge_key = None
    if inputs.key_table is not None:
        edge_key = table_rows(inputs.key_table, graph.labels[None])
    if inputs.value_table is not None:
        values = values + table_rows(inputs.value_table, graph.labels[None])
    logits = inputs.compatibility.logits(query, key, edge_key, inputs.scale)
    queries = torch.arange(inputs.n_query, device=query.device)
    allowed = (graph.query_index == queries[:, None])[None, None]
    weights = masked_softmax(logits.unsqueeze(2).expand(-1, -1, len(queries), -1), allowed)
    return torch.dropout(weights, inputs.dropout, train=True) @ values


BACKEND = Backend("reference", supports=lambda inputs: None, cost=lambda inputs: 1000.0, run=run)
