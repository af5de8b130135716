"""What is refused of graphs and compatibilities, and what the message says."""

from typing import Any

import pytest
import torch
from graph_inputs import GraphInputs
from messages import raises

from edgewise import (
    Additive,
    EdgeLabels,
    EdgeList,
    EdgeVectors,
    Gated,
    RelationAttention,
    RelativePositions,
    attention_parts,
)
from edgewise.errors import ArgumentError

pytestmark = pytest.mark.unhooked  # the hook would raise first


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


# batch 2, 3 heads, 5 queries, 7 keys, d_head 4, tables of 6 rows
INPUTS = GraphInputs("labels")
LISTED = GraphInputs("edge list")
FLOATS = {"dtype": torch.float64}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
RELATIONS = ("EdgeLabels", "EdgeList", "EdgeVectors")

MADE = {
    "labels that are no tensor": (
        lambda: EdgeLabels([[1]]),
        ("labels", "tensor", "list"),
    ),
    "labels of floats": (
        lambda: EdgeLabels(torch.zeros(2, 2)),
        ("labels", *INTEGERS, "torch.float32"),
    ),
    "labels of bools": (
        lambda: EdgeLabels(torch.ones(2, 2) > 0),
        ("labels", *INTEGERS, "torch.bool"),
    ),
    "labels of unsigned ints": (
        lambda: EdgeLabels(torch.zeros(2, 2, dtype=torch.uint32)),
        ("labels", *INTEGERS, "torch.uint32"),
    ),
    "a graph over no positions": (
        lambda: EdgeLabels.from_graph_and_positions(ints([0, -1]), 2),
        ("positions", "RelativePositions", "int"),
    ),
    "a graph over other positions": (
        lambda: EdgeLabels.from_graph_and_positions(
            torch.full((3, 2, 2), -1), RelativePositions(1, query_offset=torch.tensor([0, 2]))
        ),
        ("query_offset", "labels", 3, 2),
    ),
    "indices on two devices": (
        lambda: EdgeList(ints(0), ints(0).to("meta"), ints(0)),
        ("key_index", "device", "query_index", "cpu", "meta"),
    ),
    "vectors of ints": (
        lambda: EdgeVectors(torch.ones(2, 2, 3).long(), None),
        ("edge_key", "torch.int64"),
    ),
    "labels of rank 1": (
        lambda: EdgeLabels(ints(1, 2)),
        ("labels", "[n_query, n_key]", "[batch, n_query, n_key]", "[2]"),
    ),
    "labels below -1": (
        lambda: EdgeLabels(ints([0, -2])),
        ("labels", -1, -2),
    ),
    "an index of another dtype": (
        lambda: EdgeList(ints(0).int(), ints(0), ints(0)),
        ("query_index", "int64", "[edge]", "torch.int32", "[1]"),
    ),
    "a list of ints": (
        lambda: EdgeList(ints(0), [0], ints(0)),
        ("key_index", "int64", "[edge]", "list"),
    ),
    "labels of another rank": (
        lambda: EdgeList(ints(0), ints(0), ints([0])),
        ("labels", "[edge]", "torch.int64", "[1, 1]"),
    ),
    "mismatched lengths": (
        lambda: EdgeList(ints(0, 1, 2), ints(0, 1), ints(0)),
        ("query_index", "key_index", "labels", 3, 2, 1),
    ),
    "a negative index": (
        lambda: EdgeList(ints(0), ints(-1), ints(0)),
        ("key_index", 0, -1),
    ),
    "a label below -1": (
        lambda: EdgeList(ints(0), ints(0), ints(-3)),
        ("labels", -1, -3),
    ),
    "more nodes than there are": (
        lambda: EdgeList(ints(0), ints(4), ints(0), n_nodes=4),
        ("query_index", "key_index", "n_nodes", 4),
    ),
    "nodes that are no number": (
        lambda: EdgeList(ints(0), ints(4), ints(0), n_nodes=True),
        ("n_nodes", "int", 0, "True"),
    ),
    "a union of nothing": (lambda: EdgeList.union([]), ("union",)),
    "a union of labels": (
        lambda: EdgeList.union([EdgeLabels(ints([0]))]),
        ("union", "EdgeLabels"),
    ),
    "vectors that are not there": (
        lambda: EdgeVectors(None, None),
        ("EdgeVectors", "edge_key", "edge_value", "None"),
    ),
    "vectors of rank 2": (
        lambda: EdgeVectors(None, torch.ones(2, 2)),
        ("edge_value", "[n_query, n_key, d_head]", "[2, 2]"),
    ),
    "a u of rank 3": (
        lambda: Additive(torch.ones(1, 1, 1)),
        ("u", "[d_head]", "[head, d_head]", "[1, 1, 1]"),
    ),
    "a u that is a number": (lambda: Additive(1.0), ("u", "tensor", "float")),
}


@pytest.mark.parametrize("what", MADE)
def test_what_is_no_graph_is_refused_when_it_is_made(what: str) -> None:
    make, facts = MADE[what]
    with raises(ArgumentError, *facts):
        make()


def of_list(query: Any, key: Any, label: Any, **options: Any) -> dict[str, Any]:
    return {"relations": EdgeList(ints(*query), ints(*key), ints(*label), **options)}


CALLED = {
    "labels of another size": (
        INPUTS,
        {"relations": EdgeLabels(torch.zeros(7, 5, dtype=torch.int64))},
        ("labels", "[5, 7]", "[2, 5, 7]", "[7, 5]"),
    ),
    "labels of another batch": (
        INPUTS,
        {"relations": EdgeLabels(torch.zeros(3, 5, 7, dtype=torch.int64))},
        ("labels", "[2, 5, 7]", "[3, 5, 7]"),
    ),
    "a label outside the key table": (
        INPUTS,
        {"relations": EdgeLabels(torch.full((5, 7), 6))},
        ("labels", "key_table", 6),
    ),
    "a label outside the value table": (
        INPUTS,
        {"value_table": torch.ones(2, 4, **FLOATS)},
        ("labels", "value_table", 2, 5),
    ),
    "a table of another d_head": (
        INPUTS,
        {"key_table": torch.ones(6, 3, **FLOATS)},
        ("key_table", "[label, 4]", "[3, label, 4]", "[6, 3]"),
    ),
    "a table of other heads": (
        INPUTS,
        {"key_table": torch.ones(2, 6, 4, **FLOATS)},
        ("key_table", "[3, label, 4]", "[2, 6, 4]"),
    ),
    "a query outside the graph": (
        LISTED,
        of_list([5], [0], [0]),
        ("query_index", 5),
    ),
    "a key outside the graph": (
        LISTED,
        of_list([0], [7], [0]),
        ("key_index", 7),
    ),
    "a label of an edge outside the table": (
        LISTED,
        of_list([0], [0], [9]),
        ("labels", "key_table", 6, 9),
    ),
    "nodes of another graph": (
        LISTED,
        of_list([0], [0], [0], n_nodes=5),
        ("n_nodes", 5, 7),
    ),
    "a mask with a list of edges": (
        LISTED,
        {"mask": torch.ones(5, 7, dtype=torch.bool)},
        ("EdgeList", "mask"),
    ),
    "a causal list of edges": (
        LISTED,
        {"causal": True},
        ("EdgeList", "causal"),
    ),
    "causal labels of other sizes": (
        INPUTS,
        {"causal": True},
        ("causal", 5, 7),
    ),
    "vectors of another size": (
        INPUTS,
        {
            "relations": EdgeVectors(torch.ones(7, 5, 4, **FLOATS), None),
            "key_table": None,
            "value_table": None,
        },
        ("edge_key", "[5, 7, 4]", "[2, 5, 7, 4]", "[2, 3, 5, 7, 4]", "[7, 5, 4]"),
    ),
    "vectors of another dtype": (
        INPUTS,
        {
            "relations": EdgeVectors(None, torch.ones(5, 7, 4)),
            "key_table": None,
            "value_table": None,
        },
        ("edge_value", "dtype", "torch.float64", "torch.float32"),
    ),
    "tables beside vectors": (
        INPUTS,
        {"relations": EdgeVectors(torch.ones(5, 7, 4, **FLOATS), None)},
        ("key_table", "relations", "EdgeVectors"),
    ),
    "relations of another type": (
        INPUTS,
        {"relations": "a graph"},
        ("relations", "RelativePositions", *RELATIONS, "None", "str"),
    ),
    "a compatibility of another type": (
        INPUTS,
        {"compatibility": "additive"},
        ("compatibility", "Additive(u)", "Gated()", "None", "additive"),
    ),
    "a u of another size": (
        INPUTS,
        {"compatibility": Additive(torch.ones(3, **FLOATS))},
        ("u", "[4]", "[3, 4]", "[3]"),
    ),
    "a u of another dtype": (
        INPUTS,
        {"compatibility": Additive(torch.ones(4))},
        ("u", "dtype", "torch.float64", "torch.float32"),
    ),
    "a list of edges by another method": (
        LISTED,
        {"method": "gather"},
        ("method", "gather", "EdgeList"),
    ),
    "labels by the sparse method": (
        INPUTS,
        {"method": "sparse"},
        ("method", "sparse", "EdgeList", "relations", "EdgeLabels"),
    ),
    "labels by block": (
        INPUTS,
        {"method": "blockwise"},
        ("method", "blockwise", "RelativePositions", "relations", "EdgeLabels"),
    ),
    "gates by block": (
        GraphInputs("positions"),
        {"method": "blockwise", "compatibility": Gated()},
        ("method", "blockwise", "compatibility", "Gated"),
    ),
}


@pytest.mark.parametrize("what", CALLED)
def test_what_does_not_fit_is_refused_when_it_is_called(what: str) -> None:
    inputs, changes, facts = CALLED[what]
    with raises(ArgumentError, *facts):
        inputs.output(**changes)


@pytest.mark.parametrize("relations", ["labels", "edge list"])
def test_a_graph_on_another_device_is_refused(relations: str) -> None:
    inputs = GraphInputs(relations)
    inputs.leaves = {name: x.to("meta") for name, x in inputs.leaves.items()}
    what = "labels" if relations == "labels" else "graph"
    with raises(ArgumentError, what, "device", "meta", "cpu"):
        inputs.output()


def test_a_u_on_another_device_is_refused() -> None:
    with raises(ArgumentError, "u", "device", "cpu", "meta"):
        INPUTS.output(compatibility=Additive(torch.ones(4, **FLOATS).to("meta")))


def test_graphs_on_two_devices_have_no_union() -> None:
    graphs = [EdgeList(ints(0), ints(1), ints(0)) for _ in range(2)]
    object.__setattr__(graphs[1], "labels", graphs[1].labels.to("meta"))
    with raises(ArgumentError, "graphs", "device", "cpu", "meta"):
        EdgeList.union(graphs)


def test_parts_of_a_list_of_edges_are_refused() -> None:
    leaves = LISTED.leaves
    with raises(ArgumentError, "attention_parts", "relations", "EdgeList", "EdgeLabels"):
        attention_parts(leaves["query"], leaves["key"], EdgeList(*LISTED.edges))


LABELS = EdgeLabels(torch.zeros(5, 5, dtype=torch.int64))
LAYERS = {
    "both kinds of tables": (
        lambda: RelationAttention(12, 3, max_distance=2, n_labels=4),
        ("max_distance", 2, "n_labels", 4),
    ),
    "no labels": (
        lambda: RelationAttention(12, 3, n_labels=0),
        ("n_labels", 1, 0),
    ),
    "a compatibility that is no class": (
        lambda: RelationAttention(12, 3, n_labels=2, compatibility=Gated()),
        ("compatibility", "Additive", "Gated", "None", "Gated()"),
    ),
    "a label that a layer does not know": (
        lambda: RelationAttention(12, 3, n_labels=2, on_keys=False, on_values=False)(
            torch.ones(2, 2, 12), relations=EdgeLabels(torch.tensor([[0, 1], [2, 0]]))
        ),
        ("labels", "n_labels", 2),
    ),
    "a graph that is missing": (
        lambda: RelationAttention(12, 3, n_labels=2)(torch.ones(2, 5, 12)),
        ("n_labels", "relations", "EdgeLabels", "EdgeList", "None"),
    ),
    "positions for a layer": (
        lambda: RelationAttention(12, 3)(torch.ones(2, 5, 12), relations=RelativePositions(2)),
        ("relations", "RelativePositions", "max_distance"),
    ),
    "a graph that is a string": (
        lambda: RelationAttention(12, 3, n_labels=2)(torch.ones(2, 5, 12), relations="g"),
        ("relations", *RELATIONS, "None", "str"),
    ),
    "vectors for tables": (
        lambda: RelationAttention(12, 3, n_labels=2)(
            torch.ones(2, 5, 12), relations=EdgeVectors(torch.ones(5, 5, 4), None)
        ),
        ("n_labels", "relations", "EdgeLabels", "EdgeList", "EdgeVectors"),
    ),
    "a graph for positions": (
        lambda: RelationAttention(12, 3, max_distance=2)(torch.ones(2, 5, 12), relations=LABELS),
        ("relations", "EdgeLabels", "n_labels"),
    ),
    "edges with a state": (
        lambda: RelationAttention(12, 3)(
            torch.ones(2, 5, 12),
            relations=EdgeList(ints(0), ints(1), ints(0)),
            state=RelationAttention(12, 3).new_state(2),
        ),
        ("state",),
    ),
    "edges for positions": (
        lambda: RelationAttention(12, 3, max_distance=2)(
            torch.ones(2, 5, 12), relations=EdgeList(ints(0), ints(1), ints(0))
        ),
        ("relations", "EdgeList", "max_distance", 2),
    ),
    "a state of a graph": (
        lambda: RelationAttention(12, 3, n_labels=2)(
            torch.ones(2, 5, 12), relations=LABELS, state=RelationAttention(12, 3).new_state(2)
        ),
        ("state",),
    ),
}


@pytest.mark.parametrize("what", LAYERS)
def test_a_layer_refuses_the_graph_of_another(what: str) -> None:
    make, facts = LAYERS[what]
    with raises(ArgumentError, *facts):
        make()
