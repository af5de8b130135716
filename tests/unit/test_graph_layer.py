"""`RelationAttention` over a graph."""

import math

import pytest
import torch
from torch import Tensor, nn

from edgewise import (
    Additive,
    EdgeLabels,
    EdgeList,
    EdgeVectors,
    Gated,
    RelationAttention,
    relation_attention,
)

COMPATIBILITIES = pytest.mark.parametrize("compatibility", [None, Additive, Gated])


def by_hand(layer: RelationAttention, x: Tensor, relations: object, **options: object) -> Tensor:
    query, key, value = (
        project(x).unflatten(-1, (layer.heads, layer.d_head)).transpose(1, 2)
        for project in (layer.query, layer.key, layer.value)
    )
    compatibility = Additive(layer.u) if layer.u is not None else None
    if layer.compatibility is Gated:
        compatibility = Gated()
    z = relation_attention(
        *(query, key, value, relations),
        key_table=layer.key_table,
        value_table=layer.value_table,
        compatibility=compatibility,
        method="reference",
        **options,
    )
    return layer.output(z.transpose(1, 2).flatten(2))


@COMPATIBILITIES
@pytest.mark.parametrize("per_head", [False, True])
def test_a_layer_projects_and_attends(compatibility: type | None, per_head: bool) -> None:
    torch.manual_seed(0)
    layer = RelationAttention(
        12, 3, n_labels=5, per_head=per_head, compatibility=compatibility
    ).double()
    x = torch.randn(2, 6, 12).double()
    labels = EdgeLabels(torch.randint(-1, 5, (2, 6, 6)))
    tokens = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    expected = by_hand(layer, x, labels, mask=tokens[:, None, None, :])
    torch.testing.assert_close(layer(x, mask=tokens, relations=labels), expected)
    edges = EdgeList(*torch.randint(6, (2, 9)), torch.randint(5, (9,)))
    torch.testing.assert_close(layer(x, relations=edges), by_hand(layer, x, edges))


def test_a_layer_without_tables_takes_vectors_or_edges() -> None:
    torch.manual_seed(0)
    layer = RelationAttention(12, 3).double()
    x, vectors = torch.randn(2, 6, 12).double(), torch.randn(6, 6, 4).double()
    for relations in (
        EdgeVectors(vectors, None),
        EdgeList(*torch.randint(6, (2, 9)), torch.full((9,), -1)),
    ):
        torch.testing.assert_close(layer(x, relations=relations), by_hand(layer, x, relations))


@COMPATIBILITIES
def test_a_layer_learns_all_it_has(compatibility: type | None) -> None:
    layer = RelationAttention(12, 3, n_labels=5, compatibility=compatibility)
    graph = EdgeList(*torch.randint(6, (2, 30)), torch.arange(30) % 5)
    layer(torch.randn(2, 6, 12), relations=graph).square().sum().backward()
    names = {"query.weight", "key.weight", "value.weight", "output.weight"}
    names |= {"key_table", "value_table"} | ({"u"} if compatibility is Additive else set())
    assert {name for name, p in layer.named_parameters() if p.grad.abs().sum() > 0} == names


def test_tables_and_u_are_drawn_evenly() -> None:
    layer = RelationAttention(512, 8, n_labels=30, compatibility=Additive)
    for tensor, bound in (
        (layer.key_table, math.sqrt(6 / (30 + 64))),
        (layer.u, math.sqrt(6 / (1 + 64))),
    ):
        assert 0.95 * bound < tensor.abs().max() <= bound
        assert abs(tensor.std().item() - bound / math.sqrt(3)) < 0.1 * bound


def test_a_layer_says_what_it_is() -> None:
    layer = RelationAttention(12, 3, n_labels=5, on_values=False, compatibility=Gated)
    assert "n_labels=5, per_head=False, dropout=0.0, on keys, Gated" in repr(layer)


def test_dropout_is_of_training_only() -> None:
    torch.manual_seed(0)
    layer = RelationAttention(12, 3, n_labels=5, dropout=0.5)
    x, graph = torch.randn(1, 6, 12), EdgeList(*torch.randint(6, (2, 30)), torch.arange(30) % 5)
    assert not torch.equal(layer(x, relations=graph), layer(x, relations=graph))
    layer.eval()
    assert torch.equal(layer(x, relations=graph), layer(x, relations=graph))


def test_under_autocast_a_graph_is_attended_in_the_lower_precision() -> None:
    layer = RelationAttention(12, 3, n_labels=5, compatibility=Additive)
    x, graph = torch.randn(1, 6, 12), EdgeLabels(torch.randint(5, (6, 6)))
    exact = layer(x, relations=graph)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = layer(x, relations=graph)
    assert lowered.dtype == torch.bfloat16
    assert (lowered - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("edges", [0, 40])
def test_pytorch_geometrics_layer_is_a_special_case(edges: int) -> None:
    """Its edges add one vector to keys and values: a projection, of each head, of its own."""
    conv = pytest.importorskip("torch_geometric.nn").TransformerConv
    torch.manual_seed(0)
    nodes, labels, heads, d_head, d_model = 11, 6, 3, 4, 7
    theirs = conv(d_model, d_head, heads=heads, edge_dim=5, root_weight=False).double()
    embedding = nn.Embedding(labels, 5).double()
    x = torch.randn(nodes, d_model).double()
    edge_index, edge_type = torch.randint(nodes, (2, edges)), torch.randint(labels, (edges,))
    expected = theirs(x, edge_index, embedding(edge_type))

    query, key, value = (
        project(x).view(1, nodes, heads, d_head).transpose(1, 2)
        for project in (theirs.lin_query, theirs.lin_key, theirs.lin_value)
    )
    table = theirs.lin_edge(embedding.weight).view(labels, heads, d_head).transpose(0, 1)
    graph = EdgeList(edge_index[1], edge_index[0], edge_type)
    ours = relation_attention(query, key, value, graph, key_table=table, value_table=table)
    torch.testing.assert_close(ours.transpose(1, 2).reshape(nodes, -1), expected)
