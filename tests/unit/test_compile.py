"""Under torch.compile, in one graph, everything stays what it is."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import Inputs, assert_same, require_cpp_compiler
from graph_inputs import GraphInputs
from torch import Tensor

from edgewise import (
    Additive,
    EdgeLabels,
    EdgeList,
    EdgeVectors,
    Gated,
    RelationAttention,
    RelativePositions,
    relation_attention,
)

pytestmark = pytest.mark.unhooked  # a hooked function cannot be compiled


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    # Graphs kept on disk are of operators as they were.
    with torch.compiler.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], backend: str = "inductor") -> Callable[..., Any]:
    if backend == "inductor":
        require_cpp_compiler()
    return torch.compile(function, fullgraph=True, backend=backend)


# aot_eager traces and differentiates without the C++ compiler, which takes seconds per graph.
traced_or_compiled = pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]
)


def results(function: Callable[..., Tensor], inputs: Inputs, **options: Any) -> dict[str, Tensor]:
    """The output of the function and the gradient of every input."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.tensors.items()}
    output = function(
        relations=inputs.relations, mask=inputs.mask, causal=inputs.causal, **leaves, **options
    )
    grads = torch.autograd.grad(output, list(leaves.values()), inputs.grad)
    return {"output": output.detach(), **dict(zip(leaves, grads, strict=True))}


def padding(batch: int, n: int) -> Tensor:
    lengths = torch.arange(batch) * 3 + 2
    return (torch.arange(n) < lengths[:, None])[:, None, None, :]


CASES = {
    "reference": Inputs(2, 3, 7, 7, 4, RelativePositions(2), causal=True, mask=padding(2, 7)),
    "diagonal": Inputs(2, 3, 9, 9, 4, RelativePositions(2), mask=padding(2, 9)),
    "diagonal, causal, a table for each head": Inputs(
        *(2, 3, 9, 9, 4), RelativePositions(2), causal=True, per_head=True
    ),
    "gather, an offset": Inputs(2, 3, 5, 9, 4, RelativePositions(2, query_offset=4), causal=True),
    "blockwise, causal": Inputs(
        *(2, 3, 150, 150, 4), RelativePositions(3), causal=True, mask=padding(2, 150)
    ),
    "blockwise, a table for each head": Inputs(
        *(2, 3, 270, 281, 4), RelativePositions(3, query_offset=5), per_head=True
    ),
    "blockwise, keys only": Inputs(1, 2, 40, 40, 4, RelativePositions(3), on_values=False),
    "auto, short": Inputs(2, 3, 11, 11, 4, RelativePositions(2), on_keys=False),
    "auto, long": Inputs(1, 2, 390, 390, 4, RelativePositions(3)),
    "auto, one label": Inputs(2, 3, 8, 8, 4, RelativePositions(0), mask=padding(2, 8)),
}


@pytest.mark.parametrize("case", CASES)
@traced_or_compiled
def test_compiled_attention_equals_eager(case: str, backend: str) -> None:
    inputs, method = CASES[case], case.split(",")[0]
    expected = results(relation_attention, inputs, method=method)
    assert_same(results(compiled(relation_attention, backend), inputs, method=method), expected)


@traced_or_compiled
def test_compiled_attention_takes_lengths_it_has_not_seen(backend: str) -> None:
    function = compiled(relation_attention, backend)
    for n in (6, 13, 21):
        inputs = Inputs(2, 3, n, n, 4, RelativePositions(2), mask=padding(2, n))
        expected = results(relation_attention, inputs, method="diagonal")
        assert_same(results(function, inputs, method="diagonal"), expected)


@traced_or_compiled
def test_compiled_dropout_drops(backend: str) -> None:
    inputs = Inputs(2, 3, 9, 9, 4, RelativePositions(2))
    function = compiled(relation_attention, backend)
    first, second = (results(function, inputs, method="gather", dropout=0.5) for _ in range(2))
    for name, value in first.items():
        assert value.isfinite().all(), name
        assert not torch.equal(value, second[name]), name


@pytest.mark.parametrize("n", [9, pytest.param(260, marks=pytest.mark.long)])
def test_a_compiled_layer_equals_eager(n: int) -> None:
    torch.manual_seed(0)
    layer = RelationAttention(12, 3, max_distance=2).double()
    x = torch.randn(2, n, 12, dtype=torch.float64)
    mask = torch.arange(n) < torch.tensor([[n], [n - 4]])
    found = []
    for function in (layer, compiled(layer)):
        output = function(x, mask=mask, causal=True)
        grads = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
        names = [name for name, _ in layer.named_parameters()]
        found.append({"output": output.detach(), **dict(zip(names, grads, strict=True))})
    assert_same(found[1], found[0])


@pytest.mark.parametrize(
    ("relations", "compatibility"),
    [
        ("labels of each item", "dot"),
        ("labels of each item", "additive, a vector for each head"),
        ("edge list", "dot"),
        ("edge list", "gated"),
        ("vectors", "additive"),
        ("positions", "gated"),
    ],
)
@traced_or_compiled
def test_graphs_stay_what_they_are(relations: str, compatibility: str, backend: str) -> None:
    inputs = GraphInputs(relations, compatibility)
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.leaves.items()}
    given, u = inputs.relations(leaves), leaves.get("u")

    def attend(leaves: dict[str, Tensor]) -> Tensor:
        named = {n: leaves.get(n) for n in ("query", "key", "value", "key_table", "value_table")}
        of = given
        if relations == "vectors":
            of = EdgeVectors(leaves["edge_key"], leaves["edge_value"])
        chosen = Additive(leaves["u"]) if u is not None else None
        chosen = Gated() if compatibility == "gated" else chosen
        return relation_attention(relations=of, compatibility=chosen, **named)

    output = compiled(attend, backend)(leaves)
    grads = torch.autograd.grad(output, list(leaves.values()), inputs.grad)
    found = {"output": output.detach(), **dict(zip(leaves, grads, strict=True))}
    assert_same(found, inputs.results("reference"))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("compatibility", [None, Additive])
@traced_or_compiled
def test_a_layer_over_a_graph_stays_what_it_is(
    batch: int, compatibility: type | None, backend: str
) -> None:
    torch.manual_seed(0)
    layer = RelationAttention(12, 3, n_labels=6, compatibility=compatibility).double()
    x = torch.randn(batch, 5, 12).double().requires_grad_()
    edges = EdgeList(*torch.randint(5, (2, 11)), torch.randint(6, (11,)))
    labels = EdgeLabels(torch.randint(-1, 6, (5, 5)))
    for relations in (edges, labels):
        found = []
        for run in (layer, compiled(layer, backend)):
            output = run(x, relations=relations)
            found.append([output, *torch.autograd.grad(output.sum(), [x, *layer.parameters()])])
        for actual, expected in zip(*found, strict=True):
            torch.testing.assert_close(actual, expected)


@traced_or_compiled
def test_tables_may_lie_otherwise_and_inputs_be_the_same(backend: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 4).double().requires_grad_()
    table = torch.randn(6, 3, 4).double().requires_grad_()
    labels = EdgeLabels(torch.randint(6, (5, 5)))

    def attend(x: Tensor, table: Tensor) -> Tensor:
        of_heads = table.transpose(0, 1)
        return relation_attention(x, x, x, labels, key_table=of_heads, value_table=of_heads)

    found = []
    for run in (attend, compiled(attend, backend)):
        output = run(x, table)
        found.append([output, *torch.autograd.grad(output.sum(), [x, table])])
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)
