"""What attention promises beyond its values: padding, precision, modes, transformations, export."""

import ast
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import METHODS, Inputs, assert_same
from graph_inputs import GraphInputs
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import edgewise.attention
from edgewise import (
    Additive,
    EdgeLabels,
    EdgeList,
    EdgeVectors,
    RelationAttention,
    RelativePositions,
    attention_parts,
    relation_attention,
)
from edgewise.attention import composite, edge_ops
from edgewise.attention.backends.blockwise import passes
from edgewise.attention.inputs import normalise

pytestmark = pytest.mark.unhooked  # dispatch modes, torch.func and export do not go through a hook

FOLDER = Path(edgewise.attention.__file__).parent


# Padding


def padded(relations: str, n: int, method: str, causal: bool) -> tuple[Inputs | GraphInputs, Any]:
    lengths = torch.tensor([n, n - 3])
    mask = (torch.arange(n) < lengths[:, None])[:, None, None, :]
    if relations == "positions":
        inputs = Inputs(2, 3, n, n, 4, RelativePositions(2), mask=mask, causal=causal)
        return inputs, inputs.tensors
    if relations == "none":
        inputs = Inputs(2, 3, n, n, 4, None, mask=mask, causal=causal)
        return inputs, inputs.tensors
    graph = GraphInputs(
        relations, "additive" if method == "nonlinear" else "dot", n_query=n, n_key=n
    )
    graph.mask, graph.causal = mask, causal
    return graph, graph.leaves


PADDED = [
    *(("positions", n, method) for n in (11, 300) for method in ("reference", *METHODS)),
    *(("positions", 800, "auto"), ("none", 11, "sdpa"), ("none", 800, "sdpa")),
    *(("labels", 11, method) for method in ("reference", "gather", "chunked_gather", "nonlinear")),
    *(("vectors", 11, method) for method in ("reference", "gather", "nonlinear")),
]


BACKENDS = [
    *((RelativePositions(2), method) for method in ("reference", *METHODS)),
    *((None, method) for method in ("reference", "gather", "sdpa")),
]


@pytest.mark.parametrize(("relations", "n", "method"), PADDED)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_padding_does_not_matter_whatever_it_contains(
    relations: str, n: int, method: str, causal: bool, value: float
) -> None:
    inputs, tensors = padded(relations, n, method, causal)
    expected = inputs.results(method)
    for name in ("key", "value"):
        tensors[name] = tensors[name].clone()
        tensors[name][1, :, -3:] = value
    assert_same(inputs.results(method), expected)


@pytest.mark.parametrize(
    ("offset", "method"),
    [
        *((4, method) for method in ("reference", "gather", "chunked_gather", "blockwise")),
        *((torch.tensor([4, 2]), method) for method in ("reference", "gather", "chunked_gather")),
    ],
)
def test_keys_after_the_last_query_do_not_matter(offset: int | Tensor, method: str) -> None:
    inputs = Inputs(2, 3, 5, 20, 4, RelativePositions(2, query_offset=offset), causal=True)
    expected = inputs.results(method)
    for name in ("key", "value"):
        inputs.tensors[name] = inputs.tensors[name].clone()
        inputs.tensors[name][:, :, 9:] = torch.nan
    assert_same(inputs.results(method), expected)


@pytest.mark.parametrize("method", ["reference", *METHODS])
def test_a_key_hidden_by_mask_and_causality_together_does_not_matter(method: str) -> None:
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[5:, 5] = False  # causality hides the key from earlier queries
    inputs = Inputs(1, 2, 9, 9, 4, RelativePositions(2), mask=mask, causal=True)
    expected = inputs.results(method)
    for name in ("key", "value"):
        inputs.tensors[name] = inputs.tensors[name].clone()
        inputs.tensors[name][:, :, 5] = torch.nan
    assert_same(inputs.results(method), expected)


@pytest.mark.parametrize(("relations", "method"), BACKENDS)
@pytest.mark.parametrize("n", [9, 40])
def test_a_key_does_not_influence_the_weights_of_queries_that_may_not_attend_it(
    method: str, n: int, relations: RelativePositions | None
) -> None:
    mask = torch.ones(n, n, dtype=torch.bool)
    mask[: n // 2, 5] = False
    inputs = Inputs(1, 2, n, n, 4, relations, mask=mask)
    expected = inputs.results(method)["output"]
    inputs.tensors["key"] = inputs.tensors["key"].clone()
    inputs.tensors["key"][:, :, 5] = torch.nan
    output = inputs.results(method)["output"]
    torch.testing.assert_close(output[:, :, : n // 2], expected[:, :, : n // 2])
    assert output[:, :, n // 2 :].isnan().all()


@pytest.mark.parametrize(
    ("relations", "method", "dropout"),
    [
        *((*backend, 0.0) for backend in BACKENDS),
        *((*backend, 0.3) for backend in BACKENDS if backend[1] in ("reference", "gather", "sdpa")),
    ],
)
@pytest.mark.parametrize("n", [9, 40, 300])
@pytest.mark.parametrize("is_contiguous", [True, False])
def test_a_later_key_does_not_influence_queries_under_causal(
    relations: RelativePositions | None, method: str, dropout: float, n: int, is_contiguous: bool
) -> None:
    inputs = Inputs(1, 2, n, n, 4, relations, causal=True)
    inputs.tensors["key"][:, :, 5] = torch.nan
    if not is_contiguous:
        inputs.tensors = {name: x.mT.contiguous().mT for name, x in inputs.tensors.items()}
    output = inputs.output(method, dropout=dropout)
    assert output[:, :, :5].isfinite().all()
    assert output[:, :, 5:].isnan().any(-1).any(-1).all()


@pytest.mark.parametrize(("relations", "method"), BACKENDS)
@pytest.mark.parametrize("n", [9, 40, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_that_may_attend_nothing_gives_zeros_even_if_it_is_nan(
    method: str, n: int, relations: RelativePositions | None, causal: bool
) -> None:
    mask = torch.ones(n, n, dtype=torch.bool)
    mask[7] = False
    inputs = Inputs(1, 2, n, n, 4, relations, mask=mask, causal=causal)
    expected = inputs.results(method)["output"]
    inputs.tensors["query"] = inputs.tensors["query"].clone()
    inputs.tensors["query"][:, :, [3, 7]] = torch.nan
    output = inputs.results(method)["output"]
    assert not output[:, :, 7].any()
    assert output[:, :, 3].isnan().all()
    others = [i for i in range(n) if i not in (3, 7)]
    torch.testing.assert_close(output[:, :, others], expected[:, :, others])


# Precision


@pytest.mark.parametrize("table", ["key_table", "value_table"])
@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.parametrize(("n", "method"), [(40, "diagonal"), (300, "blockwise"), (900, "auto")])
def test_a_large_row_does_not_disturb_queries_that_do_not_use_it(
    n: int, method: str, row: int, table: str
) -> None:
    inputs = Inputs(1, 2, n, n, 16, RelativePositions(8), dtype=torch.float32)
    inputs.tensors[table][row] = 1e6
    # Queries near the beginning have no key 8 positions before them; those at the end none after.
    unused = slice(0, 8) if row == 0 else slice(n - 8, n)
    inputs.grad[:, :, [i for i in range(n) if not unused.start <= i < unused.stop]] = 0
    found, truth = inputs.results(method), inputs.results("reference", torch.float64)
    for name in ("output", "query"):
        torch.testing.assert_close(
            found[name][:, :, unused].double(), truth[name][:, :, unused], rtol=1e-4, atol=5e-6
        )


@pytest.mark.parametrize("table", ["key_table", "value_table"])
@pytest.mark.parametrize(("n", "method"), [(40, "diagonal"), (300, "blockwise")])
def test_large_rows_do_not_disturb_causal_queries_that_do_not_use_them(
    n: int, method: str, table: str
) -> None:
    inputs = Inputs(1, 2, n, n, 16, RelativePositions(8), causal=True, dtype=torch.float32)
    inputs.tensors[table][[0, -1]] = 1e6  # of the last row there is no edge
    inputs.grad[:, :, 8:] = 0
    found, truth = inputs.results(method), inputs.results("reference", torch.float64)
    for name in ("output", "query"):
        torch.testing.assert_close(
            found[name][:, :, :8].double(), truth[name][:, :, :8], rtol=1e-4, atol=5e-6
        )


@pytest.mark.parametrize("method", ["diagonal", "blockwise"])
@pytest.mark.parametrize("row", [0, -1])
def test_a_large_row_does_not_disturb_where_its_weight_is_zero(method: str, row: int) -> None:
    inputs = Inputs(1, 2, 300, 300, 16, RelativePositions(8), dtype=torch.float32)
    inputs.tensors["query"].abs_()
    inputs.tensors["key_table"][row] = -1e6  # logits far below all others
    found, truth = inputs.results(method), inputs.results("reference", torch.float64)
    for name, expected in truth.items():
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-4, atol=2e-5)


def test_half_precision_products_are_scaled_before_they_overflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = torch.full((1, 1, 3, 64), 40.0, dtype=torch.float16)
    assert all(x.isfinite().all() for x in attention_parts(query, query, None))
    monkeypatch.setattr(composite, "product_dtype", lambda query: query.dtype)  # as on a GPU
    inputs = Inputs(1, 1, 3, 3, 64, RelativePositions(1), dtype=torch.float16)
    for name in ("query", "key"):
        inputs.tensors[name] = torch.full_like(inputs.tensors[name], 40.0)
    assert torch.finfo(torch.float16).max < 40.0 * 40.0 * 64
    assert inputs.output("gather").isfinite().all()


# Gradients of the scale, and derivatives of higher order


@pytest.mark.parametrize("method", ["reference", *METHODS, "auto"])
def test_a_scale_that_is_a_tensor_gets_its_gradient(method: str) -> None:
    inputs = Inputs(2, 3, 7, 7, 4, RelativePositions(2))
    scale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(inputs.output(method, scale=scale), inputs.output(scale=0.3))
    assert torch.autograd.gradcheck(lambda s: inputs.output(method, scale=s), scale)


@pytest.mark.parametrize("n", [5, 800])
def test_a_layer_has_second_derivatives_by_any_method(n: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, n, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for method in ("auto", "gather"):
        torch.manual_seed(1)
        layer = RelationAttention(6, 2, max_distance=2, method=method).double()
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(*found)


def attend(kind: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A function of tensors only, and these."""
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3)]
    tensors += [torch.randn(5, 4, dtype=torch.float64) for _ in range(2)]
    relations: Any = {
        "positions": RelativePositions(2),
        "labels": EdgeLabels(torch.randint(-1, 5, (5, 5))),
        "edges": EdgeList(*torch.randint(5, (2, 9)), torch.randint(-1, 5, (9,))),
        "vectors": EdgeVectors(*torch.randn(2, 5, 5, 4, dtype=torch.float64)),
    }[kind.split(",")[0]]
    if kind == "vectors":
        tensors = tensors[:3]
    names = ("query", "key", "value", "key_table", "value_table")
    mask = torch.tensor([True, True, True, True, False])[None, None, None]

    def function(*given: Tensor) -> Tensor:
        arguments: dict[str, Any] = dict(zip(names, given, strict=False))
        if kind.endswith("additive"):
            arguments["compatibility"] = Additive(given[3][0])
        if not kind.startswith("edges"):
            arguments["mask"] = mask
        return relation_attention(relations=relations, **arguments)

    return function, tensors


KINDS = ["positions", "labels", "edges", "vectors", "positions, additive", "edges, additive"]


@pytest.mark.parametrize("kind", KINDS)
def test_torch_func_differentiates_every_relation(kind: str) -> None:
    function, tensors = attend(kind)
    leaves = [x.clone().requires_grad_() for x in tensors]
    expected = torch.autograd.grad(function(*leaves).square().sum(), leaves)

    def loss(*given: Tensor) -> Tensor:
        return function(*given).square().sum()

    every = tuple(range(len(tensors)))
    for actual, each in zip(torch.func.grad(loss, every)(*tensors), expected, strict=True):
        torch.testing.assert_close(actual, each)


def test_torch_func_differentiates_plain_attention_twice() -> None:
    query, key, value = (torch.randn(2, 3, 20, 4, dtype=torch.float64) for _ in range(3))

    def squares(method: str) -> Callable[[Tensor], Tensor]:
        def loss(query: Tensor) -> Tensor:
            return relation_attention(query, key, value, None, method=method).square().sum()

        return lambda query: torch.func.grad(loss)(query).square().sum()

    found, expected = (torch.func.grad(squares(method))(query) for method in ("sdpa", "gather"))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_per_sample_are_those_of_each_sample(kind: str) -> None:
    function, (query, *rest) = attend(kind)
    queries = torch.stack([query, query + 1, query * 2])

    def loss(query: Tensor, table: Tensor) -> Tensor:
        return function(query, *rest[:-1], table).square().sum()

    found = torch.func.vmap(torch.func.grad(loss, (0, 1)), (0, None))(queries, rest[-1])
    for i, each in enumerate(queries):
        for actual, expected in zip(
            found, torch.func.grad(loss, (0, 1))(each, rest[-1]), strict=True
        ):
            torch.testing.assert_close(actual[i], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_jacobians_are_those_of_single_rows(kind: str) -> None:
    function, (query, *rest) = attend(kind)

    def output(query: Tensor) -> Tensor:
        return function(query[None, None].expand(2, 3, 5, 4), *rest)[0, 0]

    row = query[0, 0]
    expected = torch.autograd.functional.jacobian(output, row)
    torch.testing.assert_close(torch.func.jacrev(output)(row), expected)
    vectorised = torch.autograd.functional.jacobian(output, row, vectorize=True)
    torch.testing.assert_close(vectorised, expected)


# Modes


EVERY_BACKEND = [
    *((RelativePositions(2), method) for method in ("reference", *METHODS, "auto")),
    *((None, method) for method in ("sdpa", "auto")),
    *((EdgeList(*torch.arange(40).view(2, 20) % 19, torch.arange(20) % 5), x) for x in ("sparse",)),
]


def inputs_of_length(n: int, relations: Any) -> Inputs:
    has_distances = relations is None or isinstance(relations, RelativePositions)
    inputs = Inputs(2, 3, n, n, 4, relations if has_distances else RelativePositions(2))
    inputs.relations, inputs.causal = relations, has_distances
    return inputs


@pytest.mark.parametrize(("relations", "method"), EVERY_BACKEND)
def test_fake_tensors_give_shapes_and_leave_nothing_behind(relations: Any, method: str) -> None:
    inputs = inputs_of_length(19, relations)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x).requires_grad_() for name, x in inputs.tensors.items()}
        if relations is not None:
            relations = relations.map_tensors(mode.from_tensor)
        output = inputs.output(method, **fake, relations=relations)
        assert output.shape == (2, 3, 19, 4)
        grads = torch.autograd.grad(output.sum(), list(fake.values()))
    for name, grad in zip(fake, grads, strict=True):
        assert grad.shape == inputs.tensors[name].shape
    assert_same(inputs.results(method), inputs.results("reference"))


@pytest.mark.parametrize(("relations", "method"), EVERY_BACKEND)
def test_another_default_device_changes_nothing(relations: Any, method: str) -> None:
    inputs = inputs_of_length(21, relations)
    with torch.device("meta"):
        inside = inputs.results(method)
    assert_same(inside, inputs.results("reference"))
    assert_same(inputs.results(method), inputs.results("reference"))


@pytest.mark.parametrize("kind", ["labels", "edges"])
def test_another_default_device_changes_nothing_for_other_compatibilities(kind: str) -> None:
    function, tensors = attend(f"{kind}, additive")
    expected = function(*tensors)
    with torch.device("meta"):
        inside = function(*tensors)
    torch.testing.assert_close(inside, expected)


class LargestTensor(TorchDispatchMode):
    """Records the memory of the largest result of an operator, in numbers of 8 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operators += 1
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // 8)
        return result


def test_a_mask_between_all_positions_takes_no_quadratic_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "MASK_EDGES", 2**12)
    n = 2048
    inputs = Inputs(1, 1, n, n, 2, RelativePositions(4), mask=torch.ones(n, n).bool())
    with LargestTensor() as largest:
        inputs.results("blockwise")
    assert largest.numbers <= n * 512  # windows are 256 queries wide


def test_without_kernels_an_edge_list_does_not_loop_over_batch_and_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_ops, "has_kernels", lambda device: False)
    counts = []
    for batch in (1, 8):
        query, key, value = torch.randn(3, batch, 4, 6, 3)
        table = torch.randn(5, 3, requires_grad=True)
        edges = EdgeList(*torch.randint(6, (2, 11)), torch.randint(5, (11,)))
        with LargestTensor() as largest:
            relation_attention(
                *(query, key, value, edges), key_table=table, value_table=table
            ).sum().backward()
        counts.append(largest.operators)
    assert counts[0] == counts[1]


# Which backend


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_causal_layer_without_tables_runs_fused_attention(dropout: float, device: str) -> None:
    layer, called = RelationAttention(32, 4, dropout=dropout).to(device), []

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    with Recorder():
        layer(torch.ones(2, 9, 32, device=device), causal=True)
    assert torch.nn.functional.scaled_dot_product_attention in called
    assert torch.softmax not in called


def test_positions_that_change_nothing_are_left_out() -> None:
    inputs = normalise(*torch.ones(3, 1, 2, 5, 4), RelativePositions(3), causal=True)
    assert inputs.relations is None and inputs.causal
    moved = normalise(*torch.ones(3, 1, 2, 5, 4), RelativePositions(3, 2), causal=True)
    assert moved.relations is not None and moved.causal
    step = normalise(*torch.ones(3, 1, 2, 5, 4), RelativePositions(3, 4), causal=True)
    assert step.relations is None and not step.causal


def test_private_functions_of_pytorch_are_called_in_one_file_only() -> None:
    pattern = re.compile(r"torch\._(?!_)|torch\.ops\.aten|torch\.fx|functorch|\b_pytree")
    for path in sorted(FOLDER.rglob("*.py")):
        if path.name == "private.py":
            continue
        code = ast.unparse(_without_docstrings(ast.parse(path.read_text())))
        assert not pattern.findall(code), path


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()) as docstring, *_]:
                docstring.value = ast.Constant("")
    return tree


# The cache of a decoder


def test_a_state_with_max_length_keeps_its_buffer_with_gradients_enabled() -> None:
    torch.manual_seed(0)
    layer = RelationAttention(6, 2, max_distance=2).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    expected = layer(x, causal=True)
    state = layer.new_state(2, max_length=9)
    buffer = state._buffer
    outputs = [layer(x[:, :4], state=state)]  # with gradients
    with torch.no_grad():
        outputs += [layer(x[:, i : i + 1], state=state) for i in range(4, 7)]
    outputs.append(layer(x[:, 7:8], state=state))
    with torch.no_grad():
        outputs.append(layer(x[:, 8:], state=state))
    assert state._buffer is buffer
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)


# Export


LAYERS = {
    "positions": {"max_distance": 3},
    "positions, a table per head": {"max_distance": 3, "per_head": True},
    "plain": {},
    "one label": {"max_distance": 0},
}


@pytest.mark.parametrize("settings", LAYERS)
@pytest.mark.parametrize("causal", [False, True])
def test_one_exported_program_takes_all_lengths_and_can_be_trained(
    settings: str, causal: bool
) -> None:
    torch.manual_seed(0)
    layer = RelationAttention(6, 2, **LAYERS[settings]).double()

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.layer(x, mask=mask, causal=causal)

    length = torch.export.Dim("length", min=2, max=700)
    x, mask = torch.randn(2, 9, 6).double(), torch.ones(2, 9).bool()
    program = torch.export.export(
        Whole(), (x, mask), dynamic_shapes={"x": {1: length}, "mask": {1: length}}
    )
    for n in (2, 3, 40, 700):
        x, mask = torch.randn(2, n, 6).double(), torch.ones(2, n).bool()
        mask[1, n // 2 + 1 :] = False
        module = program.module()
        expected = Whole()(x, mask)
        torch.testing.assert_close(module(x, mask), expected)
        parameters = dict(module.named_parameters())
        grads = torch.autograd.grad(module(x, mask).square().sum(), list(parameters.values()))
        wanted = dict(
            zip(
                dict(Whole().named_parameters()),
                torch.autograd.grad(expected.square().sum(), list(layer.parameters())),
                strict=True,
            )
        )
        for name, grad in zip(parameters, grads, strict=True):
            torch.testing.assert_close(grad, wanted[name])


@pytest.mark.parametrize("strict", [False, True])
def test_relations_are_inputs_of_an_exported_program(strict: bool) -> None:
    class Attend(torch.nn.Module):
        def forward(self, x: Tensor, table: Tensor, graph: EdgeLabels | EdgeList) -> Tensor:
            return relation_attention(x, x, x, graph, key_table=table)

    x, table = torch.randn(2, 3, 5, 4), torch.randn(6, 4)
    graphs = (
        [EdgeLabels(torch.randint(least, 6, (5, 5)), n_labels=6) for least in (0, -1)],
        [
            EdgeList(*ends, ends[0] + least)
            for ends, least in ((torch.randint(2, (2, 7)), 0), (torch.randint(5, (2, 7)), -1))
        ],
    )
    for first, second in graphs:
        program = torch.export.export(Attend(), (x, table, first), strict=strict)
        torch.testing.assert_close(program.module()(x, table, second), Attend()(x, table, second))


# Relations


RELATIONS = {
    "positions": lambda: RelativePositions(2, query_offset=torch.tensor([1, 2])),
    "labels": lambda: EdgeLabels(torch.tensor([[0, 1], [0, 2]], dtype=torch.int8), n_labels=9),
    "edges": lambda: EdgeList(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([2, -1])),
    "vectors": lambda: EdgeVectors(torch.randn(2, 2, 3), None),
}


@pytest.mark.parametrize("kind", RELATIONS)
def test_relations_move_to_devices_and_are_pytrees(kind: str) -> None:
    relation = RELATIONS[kind]()
    moved = relation.to("meta")
    assert type(moved) is type(relation)
    tensors = {name: x for name, x in vars(relation).items() if isinstance(x, Tensor)}
    assert tensors
    for name, x in vars(moved).items():
        if name in tensors:
            assert x.device.type == "meta" and x.shape == tensors[name].shape
            assert x.dtype == tensors[name].dtype
        else:
            assert x == vars(relation)[name]
    assert vars(moved).keys() == vars(relation).keys()
    leaves, spec = torch.utils._pytree.tree_flatten(relation)
    assert all(a is b for a, b in zip(leaves, tensors.values(), strict=True))
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    for field in dataclasses.fields(relation):
        # What was read from values is not kept: it differs between inputs of one program.
        expected = getattr(relation, field.name) if field.init or field.name in tensors else None
        found = getattr(again, field.name)
        assert found is expected or found == expected or field.name == "has_unlabelled"
    dumped = torch.utils._pytree.treespec_dumps(spec)
    assert torch.utils._pytree.treespec_loads(dumped) == spec


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_labels_keep_a_compact_dtype(dtype: torch.dtype) -> None:
    labels = torch.randint(-int(dtype.is_signed), 5, (7, 7)).to(dtype)
    relation = EdgeLabels(labels, n_labels=5)
    assert relation.labels.dtype == dtype
    inputs = Inputs(2, 3, 7, 7, 4, RelativePositions(2))
    inputs.relations = EdgeLabels(labels.long())
    expected = inputs.results("reference")
    inputs.relations = relation
    for method in ("auto", "gather", "chunked_gather"):
        assert_same(inputs.results(method), expected)


def test_labels_with_their_number_need_no_values() -> None:
    labels = EdgeLabels(torch.empty(4, 4, dtype=torch.int16, device="meta"), n_labels=9)
    assert labels.n_labels == 9


def test_relations_are_built_inside_a_compiled_graph() -> None:
    def attend(x: Tensor, table: Tensor, labels: Tensor, ends: Tensor) -> Tensor:
        by_label = relation_attention(
            x, x, x, EdgeLabels(labels, n_labels=5), key_table=table, value_table=table
        )
        by_distance = relation_attention(x, x, x, RelativePositions(2), key_table=table)
        edges = EdgeList(ends[0], ends[1], labels.flatten()[: ends.shape[1]])
        along = relation_attention(x, x, x, edges, key_table=table, value_table=table)
        return by_label + by_distance + along

    torch.manual_seed(0)
    arguments = (
        *(torch.randn(2, 3, 6, 4).double(), torch.randn(5, 4).double()),
        *(torch.randint(-1, 5, (6, 6)), torch.randint(6, (2, 8))),
    )
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), attend(*arguments))


@pytest.mark.parametrize("kind", KINDS)
def test_transformations_are_compiled(kind: str) -> None:
    function, (query, *rest) = attend(kind)

    def loss(query: Tensor) -> Tensor:
        return function(query, *rest).square().sum()

    compiled = torch.compile(torch.func.grad(loss), backend="aot_eager")
    torch.testing.assert_close(compiled(query), torch.func.grad(loss)(query))


def test_integers_in_the_fields_of_a_relation_are_not_cast() -> None:
    @dataclasses.dataclass(frozen=True, eq=False)
    class Buckets(EdgeVectors):
        buckets: Tensor | None = None

    vectors = torch.randn(5, 5, 4)
    relation = Buckets(vectors, None, torch.arange(2**12, 2**12 + 5))
    inputs = normalise(*torch.randn(3, 1, 2, 5, 4), relation).cast(torch.bfloat16)
    assert inputs.relations.edge_key.dtype == torch.bfloat16
    assert torch.equal(inputs.relations.buckets, relation.buckets)
