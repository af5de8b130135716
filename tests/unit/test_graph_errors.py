"""What is refused of graphs and compatibilities, and what the message says."""

from typing import Any

import pytest
import torch
from graph_inputs import GraphInputs

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

MADE = {
    "labels that are no tensor": (
        lambda: EdgeLabels([[1]]),
        "labels must be a tensor; got list",
    ),
    "labels of floats": (
        lambda: EdgeLabels(torch.zeros(2, 2)),
        r"labels must be of an int type \(int8, int16, int32, int64, uint8\); got torch.float32",
    ),
    "labels of bools": (
        lambda: EdgeLabels(torch.ones(2, 2) > 0),
        r"labels must be of an int type \(.*\); got torch.bool",
    ),
    "labels of unsigned ints": (
        lambda: EdgeLabels(torch.zeros(2, 2, dtype=torch.uint32)),
        r"labels must be of an int type \(.*\); got torch.uint32",
    ),
    "a graph over no positions": (
        lambda: EdgeLabels.over(2, ints([0, -1])),
        "positions must be RelativePositions; got int",
    ),
    "a graph over other positions": (
        lambda: EdgeLabels.over(
            RelativePositions(1, query_offset=torch.tensor([0, 2])), torch.full((3, 2, 2), -1)
        ),
        "query_offset must be one for each of the 3 items of labels; got 2",
    ),
    "indices on two devices": (
        lambda: EdgeList(ints(0), ints(0).to("meta"), ints(0)),
        "key_index must be on the device of query_index, cpu; got meta",
    ),
    "vectors of ints": (
        lambda: EdgeVectors(torch.ones(2, 2, 3).long(), None),
        "edge_key must be of a float type; got torch.int64",
    ),
    "labels of rank 1": (
        lambda: EdgeLabels(ints(1, 2)),
        r"labels must be \[n_query, n_key\] or \[batch, n_query, n_key\]; got \[2\]",
    ),
    "labels below -1": (
        lambda: EdgeLabels(ints([0, -2])),
        r"labels must be -1 \(no vector\) or more; got -2",
    ),
    "an index of another dtype": (
        lambda: EdgeList(ints(0).int(), ints(0), ints(0)),
        r"query_index must be an int64 tensor \[edge\]; got torch.int32 \[1\]",
    ),
    "a list of ints": (
        lambda: EdgeList(ints(0), [0], ints(0)),
        r"key_index must be an int64 tensor \[edge\]; got list",
    ),
    "labels of another rank": (
        lambda: EdgeList(ints(0), ints(0), ints([0])),
        r"labels must be an int64 tensor \[edge\]; got torch.int64 \[1, 1\]",
    ),
    "mismatched lengths": (
        lambda: EdgeList(ints(0, 1, 2), ints(0, 1), ints(0)),
        "must have one entry for each edge; got 3, 2 and 1",
    ),
    "a negative index": (
        lambda: EdgeList(ints(0), ints(-1), ints(0)),
        "key_index must be 0 or more; got -1",
    ),
    "a label below -1": (
        lambda: EdgeList(ints(0), ints(0), ints(-3)),
        r"labels must be -1 or more; got -3 \(-1 is an edge without a label\)",
    ),
    "more nodes than there are": (
        lambda: EdgeList(ints(0), ints(4), ints(0), n_nodes=4),
        "query_index and key_index must be below n_nodes, 4; got 4",
    ),
    "nodes that are no number": (
        lambda: EdgeList(ints(0), ints(4), ints(0), n_nodes=True),
        "n_nodes must be an int, 0 or more; got True",
    ),
    "a union of nothing": (lambda: EdgeList.union([]), "union needs one graph or more; got none"),
    "a union of labels": (
        lambda: EdgeList.union([EdgeLabels(ints([0]))]),
        "union takes EdgeLists; got EdgeLabels",
    ),
    "vectors that are not there": (
        lambda: EdgeVectors(None, None),
        "EdgeVectors needs edge_key or edge_value; got None and None",
    ),
    "vectors of rank 2": (
        lambda: EdgeVectors(None, torch.ones(2, 2)),
        r"edge_value must be \[n_query, n_key, d_head\], .*; got \[2, 2\]",
    ),
    "a u of rank 3": (
        lambda: Additive(torch.ones(1, 1, 1)),
        r"u must be a tensor \[d_head\] or \[head, d_head\]; got \[1, 1, 1\]",
    ),
    "a u that is a number": (lambda: Additive(1.0), "u must be a tensor .*; got float"),
}


@pytest.mark.parametrize("what", MADE)
def test_what_is_no_graph_is_refused_when_it_is_made(what: str) -> None:
    make, message = MADE[what]
    with pytest.raises(ArgumentError, match=message):
        make()


def of_list(query: Any, key: Any, label: Any, **options: Any) -> dict[str, Any]:
    return {"relations": EdgeList(ints(*query), ints(*key), ints(*label), **options)}


CALLED = {
    "labels of another size": (
        INPUTS,
        {"relations": EdgeLabels(torch.zeros(7, 5, dtype=torch.int64))},
        r"labels must have a row for each query and a column for each key, \[5, 7\], or that for "
        r"each item, \[2, 5, 7\]; got \[7, 5\]",
    ),
    "labels of another batch": (
        INPUTS,
        {"relations": EdgeLabels(torch.zeros(3, 5, 7, dtype=torch.int64))},
        r"\[2, 5, 7\]; got \[3, 5, 7\]",
    ),
    "a label outside the key table": (
        INPUTS,
        {"relations": EdgeLabels(torch.full((5, 7), 6))},
        "labels must be below the number of rows of key_table, 6; got 6",
    ),
    "a label outside the value table": (
        INPUTS,
        {"value_table": torch.ones(2, 4, **FLOATS)},
        "labels must be below the number of rows of value_table, 2; got 5",
    ),
    "a table of another d_head": (
        INPUTS,
        {"key_table": torch.ones(6, 3, **FLOATS)},
        r"key_table must be \[label, 4\] or, a table for each head, \[3, label, 4\]; got \[6, 3\]",
    ),
    "a table of other heads": (
        INPUTS,
        {"key_table": torch.ones(2, 6, 4, **FLOATS)},
        r"\[3, label, 4\]; got \[2, 6, 4\]",
    ),
    "a query outside the graph": (
        LISTED,
        of_list([5], [0], [0]),
        "query_index must be below the number of queries, 5; got 5",
    ),
    "a key outside the graph": (
        LISTED,
        of_list([0], [7], [0]),
        "key_index must be below the number of keys, 7; got 7",
    ),
    "a label of an edge outside the table": (
        LISTED,
        of_list([0], [0], [9]),
        "labels must be below the number of rows of key_table, 6; got 9",
    ),
    "nodes of another graph": (
        LISTED,
        of_list([0], [0], [0], n_nodes=5),
        "the graph has n_nodes=5; got 5 queries and 7 keys",
    ),
    "a mask with a list of edges": (
        LISTED,
        {"mask": torch.ones(5, 7, dtype=torch.bool)},
        r"EdgeList takes no mask and no causal; got a mask \(its edges say what is attended",
    ),
    "a causal list of edges": (
        LISTED,
        {"causal": True},
        "EdgeList takes no mask and no causal; got causal",
    ),
    "causal labels of other sizes": (
        INPUTS,
        {"causal": True},
        "causal without relative positions needs as many queries as keys; got 5 and 7",
    ),
    "vectors of another size": (
        INPUTS,
        {
            "relations": EdgeVectors(torch.ones(7, 5, 4, **FLOATS), None),
            "key_table": None,
            "value_table": None,
        },
        r"edge_key must be \[5, 7, 4\], \[2, 5, 7, 4\], or \[2, 3, 5, 7, 4\] with sizes of 1 for "
        r"batch and head; got \[7, 5, 4\]",
    ),
    "vectors of another dtype": (
        INPUTS,
        {
            "relations": EdgeVectors(None, torch.ones(5, 7, 4)),
            "key_table": None,
            "value_table": None,
        },
        "edge_value must have the query's dtype, torch.float64; got torch.float32",
    ),
    "tables beside vectors": (
        INPUTS,
        {"relations": EdgeVectors(torch.ones(5, 7, 4, **FLOATS), None)},
        "key_table needs relations that label the edges; got relations=EdgeVectors",
    ),
    "relations of another type": (
        INPUTS,
        {"relations": "a graph"},
        "relations must be RelativePositions, EdgeLabels, EdgeList, EdgeVectors or None; got str",
    ),
    "a compatibility of another type": (
        INPUTS,
        {"compatibility": "additive"},
        r"compatibility must be Additive\(u\), Gated\(\) or None; got 'additive'",
    ),
    "a u of another size": (
        INPUTS,
        {"compatibility": Additive(torch.ones(3, **FLOATS))},
        r"u must be \[4\] or, a vector for each head, \[3, 4\]; got \[3\]",
    ),
    "a u of another dtype": (
        INPUTS,
        {"compatibility": Additive(torch.ones(4))},
        "u must have the query's dtype, torch.float64; got torch.float32",
    ),
    "a list of edges by another method": (
        LISTED,
        {"method": "dense"},
        "method='dense' is not for an EdgeList, whose method is 'sparse'",
    ),
    "labels by the sparse method": (
        INPUTS,
        {"method": "sparse"},
        "method='sparse' is for an EdgeList; got relations=EdgeLabels",
    ),
    "labels by block": (
        INPUTS,
        {"method": "blockwise"},
        "method='blockwise' is for RelativePositions; got relations=EdgeLabels",
    ),
    "gates by block": (
        GraphInputs("positions"),
        {"method": "blockwise", "compatibility": Gated()},
        "method='blockwise' is for the dot product; got compatibility=Gated",
    ),
}


@pytest.mark.parametrize("what", CALLED)
def test_what_does_not_fit_is_refused_when_it_is_called(what: str) -> None:
    inputs, changes, message = CALLED[what]
    with pytest.raises(ArgumentError, match=message):
        inputs.output(**changes)


@pytest.mark.parametrize("relations", ["labels", "edge list"])
def test_a_graph_on_another_device_is_refused(relations: str) -> None:
    inputs = GraphInputs(relations)
    inputs.leaves = {name: x.to("meta") for name, x in inputs.leaves.items()}
    what = "labels" if relations == "labels" else "the graph"
    with pytest.raises(ArgumentError, match=f"{what} must be on the query's device, meta; got cpu"):
        inputs.output()


def test_a_u_on_another_device_is_refused() -> None:
    with pytest.raises(ArgumentError, match="u must be on the query's device, cpu; got meta"):
        INPUTS.output(compatibility=Additive(torch.ones(4, **FLOATS).to("meta")))


def test_graphs_on_two_devices_have_no_union() -> None:
    graphs = [EdgeList(ints(0), ints(1), ints(0)) for _ in range(2)]
    object.__setattr__(graphs[1], "labels", graphs[1].labels.to("meta"))
    with pytest.raises(ArgumentError, match="graphs must be on one device; got cpu and meta"):
        EdgeList.union(graphs)


def test_parts_of_a_list_of_edges_are_refused() -> None:
    leaves = LISTED.leaves
    with pytest.raises(ArgumentError, match="of all queries and keys; got relations=EdgeList"):
        attention_parts(leaves["query"], leaves["key"], EdgeList(*LISTED.edges))


LABELS = EdgeLabels(torch.zeros(5, 5, dtype=torch.int64))
LAYERS = {
    "both kinds of tables": (
        lambda: RelationAttention(12, 3, max_distance=2, n_labels=4),
        "give max_distance or n_labels, not both; got 2 and 4",
    ),
    "no labels": (
        lambda: RelationAttention(12, 3, n_labels=0),
        "n_labels must be 1 or more; got 0",
    ),
    "a compatibility that is no class": (
        lambda: RelationAttention(12, 3, n_labels=2, compatibility=Gated()),
        "compatibility must be Additive, Gated or None; got Gated",
    ),
    "a label that a layer does not know": (
        lambda: RelationAttention(12, 3, n_labels=2, on_keys=False, on_values=False)(
            torch.ones(2, 2, 12), relations=EdgeLabels(torch.tensor([[0, 1], [2, 0]]))
        ),
        "labels must be below n_labels of the layer, 2; got 2",
    ),
    "a graph that is missing": (
        lambda: RelationAttention(12, 3, n_labels=2)(torch.ones(2, 5, 12)),
        "a layer with n_labels needs relations=EdgeLabels.* at each call; got None",
    ),
    "positions for a layer": (
        lambda: RelationAttention(12, 3)(torch.ones(2, 5, 12), relations=RelativePositions(2)),
        "a layer has its relative positions itself, .*; got relations=RelativePositions",
    ),
    "a graph that is a string": (
        lambda: RelationAttention(12, 3, n_labels=2)(torch.ones(2, 5, 12), relations="g"),
        "relations must be EdgeLabels, EdgeList, EdgeVectors or None; got str",
    ),
    "vectors for tables": (
        lambda: RelationAttention(12, 3, n_labels=2)(
            torch.ones(2, 5, 12), relations=EdgeVectors(torch.ones(5, 5, 4), None)
        ),
        "at each call; got EdgeVectors",
    ),
    "a graph for positions": (
        lambda: RelationAttention(12, 3, max_distance=2)(torch.ones(2, 5, 12), relations=LABELS),
        "relations=EdgeLabels needs a layer with n_labels",
    ),
    "edges with a state": (
        lambda: RelationAttention(12, 3)(
            torch.ones(2, 5, 12),
            relations=EdgeList(ints(0), ints(1), ints(0)),
            state=RelationAttention(12, 3).new_state(2),
        ),
        "a state is of a sequence; a graph is given whole",
    ),
    "edges for positions": (
        lambda: RelationAttention(12, 3, max_distance=2)(
            torch.ones(2, 5, 12), relations=EdgeList(ints(0), ints(1), ints(0))
        ),
        "relations=EdgeList is for a layer without max_distance; this one has max_distance=2",
    ),
    "a state of a graph": (
        lambda: RelationAttention(12, 3, n_labels=2)(
            torch.ones(2, 5, 12), relations=LABELS, state=RelationAttention(12, 3).new_state(2)
        ),
        "a state is of a sequence; a graph is given whole",
    ),
}


@pytest.mark.parametrize("what", LAYERS)
def test_a_layer_refuses_the_graph_of_another(what: str) -> None:
    make, message = LAYERS[what]
    with pytest.raises(ArgumentError, match=message):
        make()
