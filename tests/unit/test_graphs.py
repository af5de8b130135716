"""Labelled graphs and compatibilities: every path computes the definition, and the definition is
what it should be."""

import math
from pathlib import Path

import pytest
import torch
from conftest import assert_same
from graph_inputs import COMPATIBILITIES, MASKS, RELATIONS, GraphInputs
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgewise import (
    Additive,
    EdgeLabels,
    EdgeList,
    EdgeVectors,
    Gated,
    RelativePositions,
    attention_parts,
    relation_attention,
)
from edgewise.attention import edge_ops, label_passes
from edgewise.attention.backends import nonlinear


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.fixture(params=["whole", "in parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, or so little at a time that there are several parts of every kind."""
    if request.param == "in parts":
        monkeypatch.setattr(label_passes, "CHUNK", 45)
        monkeypatch.setattr(edge_ops, "CHUNK", 40)
        monkeypatch.setattr(nonlinear, "BLOCK", 350)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
@pytest.mark.parametrize(
    ("relations", "mask"),
    [
        (relations, mask)
        for relations in RELATIONS
        for mask in MASKS
        if relations != "edge list" or mask == "none"  # a list with a mask is refused
    ],
)
def test_every_backend_relation_compatibility_and_mask_equals_the_definition(
    relations: str, mask: str, compatibility: str
) -> None:
    labelled = relations in ("positions", "labels", "labels of each item", "edge list")
    for per_head in (False, True) if labelled else (False,):
        for on_keys, on_values in ((True, True), (True, False), (False, True)):
            inputs = GraphInputs(
                *(relations, compatibility, mask),
                on_keys=on_keys,
                on_values=on_values,
                per_head=per_head,
            )
            expected, methods = inputs.results("reference"), inputs.methods()
            assert len(methods) > 1
            for method in methods:
                assert_same(inputs.results(method), expected, tolerance=1e-10)


@st.composite
def cases(draw: st.DrawFn) -> GraphInputs:
    relations = draw(st.sampled_from(RELATIONS))
    mask = "none" if relations == "edge list" else draw(st.sampled_from(MASKS))
    return GraphInputs(
        relations,
        draw(st.sampled_from(COMPATIBILITIES)),
        mask,
        batch=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 3)),
        n_query=draw(st.integers(1, 9)),
        n_key=draw(st.integers(1, 9)),
        d_head=draw(st.sampled_from([1, 2, 5])),
        edges=draw(st.integers(0, 20)),
        per_head=draw(st.booleans()),
        seed=draw(st.integers(0, 999)),
    )


@given(inputs=cases())
def test_any_sizes_equal_the_definition_by_every_backend(inputs: GraphInputs) -> None:
    expected = inputs.results("reference")
    for method in inputs.methods():
        assert_same(inputs.results(method), expected, tolerance=1e-10)


@pytest.mark.parametrize("relations", RELATIONS)
@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_the_gradients_of_the_definition_are_those_of_finite_differences(
    relations: str, compatibility: str
) -> None:
    inputs = GraphInputs(relations, compatibility, batch=1, heads=2, n_query=3, n_key=4, d_head=2)
    names = list(inputs.leaves)
    leaves = [x.requires_grad_() for x in inputs.leaves.values()]

    def output(*tensors: Tensor) -> Tensor:
        return inputs.output("reference", dict(zip(names, tensors, strict=True)))

    assert torch.autograd.gradcheck(output, leaves)


# The definition, by hand


def by_hand(logits: list[float], values: list[list[float]]) -> Tensor:
    powers = [math.exp(e) for e in logits]
    return torch.tensor(
        [sum(p * v[d] for p, v in zip(powers, values, strict=True)) / sum(powers) for d in (0, 1)],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("method", ["reference", "auto"])
@pytest.mark.parametrize("compatibility", ["dot", "additive", "gated"])
def test_two_edges_by_hand(method: str, compatibility: str) -> None:
    query = torch.tensor([0.5, -1.0]).double().view(1, 1, 1, 2)
    keys, values = [[1.0, 2.0], [0.25, -0.5]], [[3.0, 4.0], [5.0, 6.0]]
    key_rows, value_rows = [[0.1, 0.2], [-0.3, 0.4]], [[10.0, 20.0], [30.0, 40.0]]
    u, scale = [0.7, -0.2], 0.9
    logits = []
    for k, a in zip(keys, key_rows, strict=True):
        terms = {
            "dot": [q * (k[d] + a[d]) * scale for d, q in enumerate((0.5, -1.0))],
            "additive": [u[d] * math.tanh(q + k[d] + a[d]) for d, q in enumerate((0.5, -1.0))],
            "gated": [
                q * k[d] * 2 / (1 + math.exp(-a[d])) * scale for d, q in enumerate((0.5, -1.0))
            ],
        }
        logits.append(sum(terms[compatibility]))
    summed = [[v[d] + a[d] for d in (0, 1)] for v, a in zip(values, value_rows, strict=True)]
    expected = by_hand(logits, summed)
    of = {"dot": None, "additive": Additive(torch.tensor(u).double()), "gated": Gated()}
    for relations in (
        EdgeLabels(torch.tensor([[0, 1]])),
        EdgeList(torch.tensor([0, 0]), torch.tensor([1, 0]), torch.tensor([1, 0])),
    ):
        output = relation_attention(
            query,
            torch.tensor(keys).double()[None, None],
            torch.tensor(values).double()[None, None],
            relations,
            key_table=torch.tensor(key_rows).double(),
            value_table=torch.tensor(value_rows).double(),
            scale=scale,
            compatibility=of[compatibility],
            method=method,
        )
        torch.testing.assert_close(output.flatten(), expected)


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_labels_of_distances_are_relative_positions(compatibility: str) -> None:
    labels = GraphInputs("labels", compatibility, n_query=6, n_key=6)
    positions = RelativePositions(2)
    labels.labels = positions.labels(6, 6)
    output = labels.output()
    torch.testing.assert_close(output, labels.output(relations=positions, **first_five(labels)))


def first_five(inputs: GraphInputs) -> dict[str, Tensor]:
    return {name: inputs.leaves[name][:5] for name in ("key_table", "value_table")}


def test_an_edge_without_a_label_adds_nothing_and_is_attended() -> None:
    inputs = GraphInputs("labels")
    inputs.labels = torch.full((5, 7), -1)
    plain = inputs.output(relations=None, key_table=None, value_table=None)
    torch.testing.assert_close(inputs.output(), plain)


@pytest.mark.parametrize("on", ["keys", "values"])
def test_gates_of_zero_tables_are_plain_attention(on: str) -> None:
    inputs = GraphInputs("labels", "gated", on_keys=on == "keys", on_values=on == "values")
    for name in ("key_table", "value_table"):
        if name in inputs.leaves:
            inputs.leaves[name] = torch.zeros_like(inputs.leaves[name])
    plain = inputs.output(relations=None, key_table=None, value_table=None, compatibility=None)
    torch.testing.assert_close(inputs.output(), plain)


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
@pytest.mark.parametrize("each_item", [False, True])
def test_labels_are_a_short_way_to_write_vectors(compatibility: str, each_item: bool) -> None:
    inputs = GraphInputs("labels of each item" if each_item else "labels", compatibility)
    padded = (
        torch.cat((inputs.leaves[f"{n}_table"], torch.zeros(1, 4).double()))
        for n in ("key", "value")
    )
    vectors = EdgeVectors(*(table[inputs.labels] for table in padded))
    output = inputs.output(relations=vectors, key_table=None, value_table=None)
    torch.testing.assert_close(inputs.output(), output)


# Lists of edges


def all_edges(labels: Tensor, mask: Tensor | None = None) -> EdgeList:
    allowed = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    queries, keys = allowed.nonzero(as_tuple=True)
    shuffled = torch.randperm(len(queries), generator=torch.Generator().manual_seed(1))
    queries, keys = queries[shuffled], keys[shuffled]
    return EdgeList(queries, keys, labels[queries, keys])


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_a_list_of_all_edges_is_labels_and_one_of_some_is_a_mask(compatibility: str) -> None:
    inputs = GraphInputs("labels", compatibility)
    torch.testing.assert_close(inputs.output(relations=all_edges(inputs.labels)), inputs.output())
    mask = random(5, 7) > 0.3
    mask[2] = False
    edges = all_edges(inputs.labels, mask)
    torch.testing.assert_close(inputs.output(relations=edges), inputs.output(mask=mask))


def test_an_edge_given_twice_counts_twice() -> None:
    inputs = GraphInputs("edge list")
    queries, keys, labels = (
        torch.tensor([0, 0, 1, 0]),
        torch.tensor([2, 3, 4, 2]),
        torch.tensor([1, 0, 2, 1]),
    )
    twice = inputs.output(relations=EdgeList(queries, keys, labels))
    # The same as another key with the same content.
    key, value = (
        torch.cat((inputs.leaves[name], inputs.leaves[name][:, :, 2:3]), dim=2)
        for name in ("key", "value")
    )
    keys = torch.tensor([2, 3, 4, 7])
    copied = inputs.output(relations=EdgeList(queries, keys, labels), key=key, value=value)
    torch.testing.assert_close(twice, copied)
    once = inputs.output(relations=EdgeList(queries[:3], keys[:3], labels[:3]))
    assert not torch.allclose(twice[:, :, 0], once[:, :, 0])


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_queries_without_edges_give_zeros_and_so_does_an_empty_graph(compatibility: str) -> None:
    inputs = GraphInputs("edge list", compatibility)
    assert not inputs.output()[:, :, -1].any()
    assert inputs.output()[:, :, inputs.edges[0][0]].all()
    inputs.edges = tuple(x[:0] for x in inputs.edges)
    for method in ("auto", "reference"):
        results = inputs.results(method)
        assert results["output"].shape == (2, 3, 5, 4)
        for name, result in results.items():
            assert not result.any(), name


def test_a_union_is_its_graphs_side_by_side() -> None:
    sizes, d_head = (3, 5, 2), 4
    graphs, inputs, outputs = [], [], []
    tables = {"key_table": random(6, d_head, seed=8), "value_table": random(6, d_head, seed=9)}
    for i, n in enumerate(sizes):
        index = torch.Generator().manual_seed(i)
        ends = torch.randint(n - 1, (2, 4), generator=index)  # the last node is isolated
        graph = EdgeList(*ends, torch.randint(6, (4,), generator=index), n_nodes=n)
        tensors = [random(1, 2, n, d_head, seed=10 * i + j) for j in range(3)]
        graphs.append(graph)
        inputs.append(tensors)
        outputs.append(relation_attention(*tensors, graph, **tables))
    union = EdgeList.union(graphs)
    assert union.n_nodes == sum(sizes)
    joined = [torch.cat(each, dim=2) for each in zip(*inputs, strict=True)]
    torch.testing.assert_close(
        relation_attention(*joined, union, **tables), torch.cat(outputs, dim=2)
    )


def test_the_weights_of_a_list_are_dropped_in_both_terms_alike() -> None:
    # Each query has 40 edges with the same weight, all values are 1: the output counts those kept.
    queries = torch.arange(12).repeat_interleave(40)
    graph = EdgeList(queries, torch.arange(480) % 12, torch.arange(480) % 3)
    ones = torch.ones(1, 2, 12, 4).double()
    torch.manual_seed(1)
    output = relation_attention(
        ones, ones, ones, graph, value_table=torch.ones(3, 4).double(), dropout=0.25
    )
    kept = output * (1 - 0.25) * 40 / 2
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-9)
    assert 0.6 < kept.mean() / 40 < 0.9


def test_nan_in_a_query_of_a_graph_stays_in_its_own_row() -> None:
    for relations in ("labels", "edge list", "vectors"):
        inputs = GraphInputs(relations)
        row = int(inputs.edges[0][0])
        inputs.leaves["query"][1, 2, row] = torch.nan
        is_nan = inputs.output().isnan()
        assert is_nan[1, 2, row].all()
        is_nan[1, 2, row] = False
        assert not is_nan.any()


# Relative positions and a graph together


def test_a_graph_over_a_sequence_takes_its_own_rows_and_distances_elsewhere() -> None:
    n, k, heads = 6, 2, 3
    parse = torch.full((n, n), -1)
    parse[1, 4], parse[3, 0] = 0, 1
    both = EdgeLabels.from_graph_and_positions(parse, RelativePositions(k))
    query, key, value = (random(2, heads, n, 4, seed=i) for i in range(3))
    distances, arcs = random(2 * k + 1, 4, seed=3), random(2, 4, seed=4)
    output = relation_attention(query, key, value, both, key_table=torch.cat((distances, arcs)))
    vectors = distances[RelativePositions(k).labels(n, n)]
    vectors[1, 4], vectors[3, 0] = arcs[0], arcs[1]
    expected = relation_attention(query, key, value, EdgeVectors(vectors, None))
    torch.testing.assert_close(output, expected)


def test_pairs_of_labels_add_the_vectors_of_distance_and_graph() -> None:
    n, k, kinds = 6, 2, 3
    parse = torch.randint(kinds, (2, n, n), generator=torch.Generator().manual_seed(1))
    positions = RelativePositions(k)
    pairs = EdgeLabels(positions.labels(n, n) * kinds + parse)
    distances, arcs = random(2 * k + 1, 4, seed=3), random(kinds, 4, seed=4)
    table = (distances[:, None] + arcs).flatten(0, 1)
    query, key, value = (random(2, 3, n, 4, seed=i) for i in range(3))
    output = relation_attention(query, key, value, pairs, key_table=table, value_table=table)
    vectors = distances[positions.labels(n, n)] + arcs[parse]
    expected = relation_attention(query, key, value, EdgeVectors(vectors, vectors))
    torch.testing.assert_close(output, expected)


# What else there is


@pytest.mark.parametrize("relations", ["labels", "labels of each item", "vectors of each head"])
def test_parts_of_a_graphs_logits_add_up_to_its_weights(relations: str) -> None:
    inputs = GraphInputs(relations, mask="random")
    leaves = inputs.leaves
    content, relation, weights = attention_parts(
        *(leaves["query"], leaves["key"], inputs.relations(leaves)),
        key_table=leaves.get("key_table"),
        mask=inputs.mask,
    )
    logits = (content + relation).masked_fill(~inputs.mask, -math.inf)
    expected = logits.softmax(-1).nan_to_num()
    torch.testing.assert_close(weights, expected)
    inputs.leaves = {n: x for n, x in leaves.items() if "value_table" not in n}
    if "edge_value" in inputs.leaves:
        del inputs.leaves["edge_value"]
    torch.testing.assert_close(inputs.output(), weights @ leaves["value"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("relations", ["labels", "edge list", "vectors"])
@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_in_half_precision_no_path_errs_more_than_twice_the_definition(
    relations: str, compatibility: str, dtype: torch.dtype
) -> None:
    inputs = GraphInputs(
        *(relations, compatibility), n_query=20, n_key=20, d_head=16, edges=150, dtype=dtype
    )
    truth = inputs.results("reference", torch.float64)
    allowed, ours = inputs.results("reference"), inputs.results("auto")
    for name, exact in truth.items():
        assert ours[name].dtype == dtype
        error = (ours[name] - exact).abs().max()
        assert error <= 2 * (allowed[name] - exact).abs().max(), name


def test_a_large_graph_takes_no_memory_for_pairs_of_nodes() -> None:
    """A byte for each node and edge would be 10 GB, a number for each pair of nodes 40."""
    n = n_edges = 100_000
    query = torch.randn(1, 1, n, 2).requires_grad_()
    ends = torch.randint(n, (2, n_edges), generator=torch.Generator().manual_seed(0))
    graph = EdgeList(*ends, torch.zeros(n_edges, dtype=torch.int64))
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    except OSError as error:
        pytest.skip(f"peak memory cannot be measured here: {error}")

    def field(name: str) -> int:
        (line,) = (each for each in status.read_text().splitlines() if each.startswith(name))
        return int(line.split()[1])

    before = field("VmRSS")
    for compatibility in (None, Gated(), Additive(torch.ones(2))):
        output = relation_attention(
            *(query, query, query, graph),
            key_table=torch.ones(1, 2),
            compatibility=compatibility,
        )
        output.sum().backward()
    assert (field("VmHWM") - before) / 1024 < 500


@pytest.mark.parametrize("relations", ["labels", "labels of each item", "vectors", "edge list"])
@pytest.mark.parametrize("compatibility", ["dot", "gated"])
def test_dropped_weights_are_those_of_the_definition(
    relations: str, compatibility: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are dropped by where they are, not by chance, so that two paths drop the same."""

    def every_third(weights: Tensor, p: float, train: bool) -> Tensor:
        # By value: the definition has the weights of a list in another form.
        return weights.where((weights * 1e6).round() % 3 != 0, 0.0) / (1 - p) if p else weights

    monkeypatch.setattr(torch, "dropout", every_third)
    inputs = GraphInputs(relations, compatibility)
    found = []
    for method in ("auto", "reference"):
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.leaves.items()}
        output = inputs.output(method, leaves, dropout=0.25)
        grads = torch.autograd.grad(output, list(leaves.values()), inputs.grad)
        found.append({"output": output.detach(), **dict(zip(leaves, grads, strict=True))})
    assert not torch.allclose(found[0]["output"], inputs.output())
    assert_same(*found)


@pytest.mark.parametrize("per_head", [False, True])
def test_several_items_in_several_parts_equal_the_definition(
    per_head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch, chunk in ((3, 220), (5, 220), (5, 330)):
        monkeypatch.setattr(label_passes, "CHUNK", chunk)
        monkeypatch.setattr(nonlinear, "BLOCK", chunk)
        for relations in ("labels", "labels of each item", "vectors of each item"):
            for compatibility in ("dot", "additive"):
                inputs = GraphInputs(
                    relations, compatibility, "padding", batch=batch, per_head=per_head
                )
                assert_same(inputs.results("auto"), inputs.results("reference"))


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
@pytest.mark.parametrize("relations", ["labels", "labels of each item", "edge list"])
def test_tables_may_differ_in_rows_and_in_heads(relations: str, compatibility: str) -> None:
    for key_table, value_table in (((6, 4), (3, 8, 4)), ((3, 9, 4), (7, 4)), ((7, 4), (6, 4))):
        inputs = GraphInputs(relations, compatibility)
        inputs.leaves["key_table"], inputs.leaves["value_table"] = (
            torch.randn(shape, dtype=torch.float64) for shape in (key_table, value_table)
        )
        assert_same(inputs.results("auto"), inputs.results("reference"))


def test_without_kernels_for_sparse_matrices_lists_equal_the_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_ops, "has_kernels", lambda device: False)
    for per_head in (False, True):
        for edges in (3, 13, 40):
            inputs = GraphInputs("edge list", edges=edges, per_head=per_head)
            assert_same(inputs.results("auto"), inputs.results("reference"))


def test_a_graph_over_sequences_at_their_own_offsets() -> None:
    positions = RelativePositions(1, query_offset=torch.tensor([0, 2]))
    parse = torch.tensor([[-1, 0], [-1, -1]])
    both = EdgeLabels.from_graph_and_positions(parse, positions)
    assert both.labels.tolist() == [[[1, 3], [0, 1]], [[0, 3], [0, 0]]]
    assert both.n_labels == 4
    known = EdgeLabels.from_graph_and_positions(parse.to("meta"), RelativePositions(1), n_labels=7)
    assert known.n_labels == 10


def test_what_was_checked_is_what_is_used() -> None:
    inputs = GraphInputs("edge list")
    queries, keys, labels = inputs.edges
    graph, dense = EdgeList(queries, keys, labels), EdgeLabels(inputs.labels)
    expected = [inputs.output(relations=each) for each in (graph, dense)]
    for x in (queries, keys, labels, inputs.labels):
        x.fill_(4)
    for relations, output in zip((graph, dense), expected, strict=True):
        for method in ("auto", "reference"):
            torch.testing.assert_close(inputs.output(method, relations=relations), output)


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_no_items_and_a_large_graph_give_nothing(compatibility: str) -> None:
    inputs = GraphInputs("edge list", compatibility, batch=0)
    results = inputs.results("auto")
    assert results["output"].shape == (0, 3, 5, 4)
    assert not results["key_table"].any()
