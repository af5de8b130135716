"""The custom operators: PyTorch's own checks, names and schemas that stay the same."""

import pytest
import torch
from torch import Tensor

from edgewise.attention import backends, edge_ops  # noqa: F401  (they register the operators)

pytestmark = pytest.mark.unhooked

# Exported programs and compiled graphs that are cached on disk refer to these. If a schema, or the
# shapes or strides of results change, increase the version in the operator's name.
_TENSORS = "Tensor query, Tensor key, Tensor value, Tensor? key_table, Tensor? value_table"
_EDGES = "Tensor rows, Tensor columns, Tensor csc_permutation, SymInt n_row"
SCHEMAS = {
    "diagonal_v1": (
        f"{_TENSORS}, Tensor? allowed, SymInt max_distance, bool causal, float scale, "
        "bool subtracts_first",
        3,
    ),
    "blockwise_v1": (
        f"{_TENSORS}, Tensor? mask, SymInt max_distance, SymInt offset, bool causal, float scale",
        6,
    ),
    "chunked_gather_v1": (
        f"{_TENSORS}, Tensor? allowed, Tensor labels, bool has_unlabelled, bool heads_first, "
        "float scale",
        3,
    ),
    "edge_products_v1": (f"Tensor x, Tensor y, {_EDGES}", 1),
    "edge_sums_v1": (f"Tensor x, Tensor y, {_EDGES}", 1),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_operators_keep_their_names_and_schemas(name: str) -> None:
    arguments, n_results = SCHEMAS[name]
    results = "Tensor" if n_results == 1 else f"({', '.join(['Tensor'] * n_results)})"
    operator = getattr(torch.ops.edgewise, name).default
    assert str(operator._schema) == f"edgewise::{name}({arguments}) -> {results}"


def random(*shape: int, requires_grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=requires_grad)


def padding(n: int) -> Tensor:
    return (torch.arange(n) < torch.tensor([n, n - 2])[:, None])[:, None, None, :]


def sequence(n_query: int, n_key: int) -> tuple[Tensor, ...]:
    return random(2, 3, n_query, 4), *(random(2, 3, n_key, 4) for _ in range(2))


def samples() -> dict[str, tuple[str, tuple[object, ...]]]:
    """Arguments of every operator, by a name of the case."""
    torch.manual_seed(0)
    labels = torch.randint(-1, 6, (1, 1, 5, 7))
    rows, columns = torch.tensor([0, 0, 1, 3, 3, 3]), torch.tensor([1, 2, 0, 0, 2, 4])
    edges = (rows, columns, columns.argsort(stable=True))
    return {
        "diagonal": (
            "diagonal_v1",
            (*sequence(9, 9), random(5, 4), random(5, 4), None, 2, False, 0.5, False),
        ),
        "diagonal, first row subtracted": (
            "diagonal_v1",
            (*sequence(9, 9), random(5, 4), random(5, 4), None, 2, False, 0.5, True),
        ),
        "diagonal, causal, masked, tables per head": (
            "diagonal_v1",
            (
                *(x.transpose(0, 1).contiguous().detach().requires_grad_() for x in sequence(9, 9)),
                *(random(3, 5, 4), random(3, 5, 4)),
                padding(9).transpose(0, 1) & torch.ones(9, 9).tril().bool(),
                *(2, True, 0.5, True),
            ),
        ),
        "diagonal, keys only, short": (
            "diagonal_v1",
            (*sequence(3, 3), random(9, 4), None, None, 4, False, 0.5, False),
        ),
        "diagonal, one position": (
            "diagonal_v1",
            (*sequence(1, 1), random(9, 4), random(9, 4), None, 4, False, 0.5, False),
        ),
        "diagonal, as long as the margin": (
            "diagonal_v1",
            (*sequence(17, 17), None, random(35, 4), None, 17, False, 0.5, False),
        ),
        "diagonal, causal, short": (
            "diagonal_v1",
            (*sequence(3, 3), random(9, 4), random(9, 4), None, 4, True, 0.5, False),
        ),
        "blockwise": (
            "blockwise_v1",
            (*sequence(300, 280), random(5, 4), random(5, 4), None, 2, -7, False, 0.5),
        ),
        "blockwise, causal, masked, values only": (
            "blockwise_v1",
            (*sequence(150, 150), None, random(3, 5, 4), padding(150), 2, 0, True, 0.5),
        ),
        "chunked gather": (
            "chunked_gather_v1",
            (*sequence(5, 7), random(6, 4), random(6, 4), padding(7), labels, True, False, 0.5),
        ),
        "chunked gather, values only": (
            "chunked_gather_v1",
            (*sequence(5, 7), None, random(2, 6, 4), None, labels.clamp(min=0), False, True, 0.5),
        ),
        "edge products": ("edge_products_v1", (random(6, 4, 3), random(6, 5, 3), *edges, 4)),
        "edge sums, shared": ("edge_sums_v1", (random(6, 6), random(1, 5, 3), *edges, 4)),
    }


@pytest.mark.parametrize("case", samples())
def test_operators_pass_the_checks_of_pytorch(case: str) -> None:
    name, arguments = samples()[case]
    forward = getattr(torch.ops.edgewise, name)
    torch.library.opcheck(forward, arguments)
    results = forward(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    saved = results if name == "blockwise_v1" else results[1:]
    backward = getattr(torch.ops.edgewise, f"{name}_backward")
    given = [x.detach() if isinstance(x, Tensor) else x for x in (*arguments, results[0], *saved)]
    torch.library.opcheck(backward, tuple(given))


@pytest.mark.parametrize("case", samples())
def test_gradients_of_operators_are_those_of_finite_differences(case: str) -> None:
    name, arguments = samples()[case]
    if name == "blockwise_v1":
        pytest.skip("long sequences; tests/unit/test_backends.py compares it with the definition")
    operator = getattr(torch.ops.edgewise, name)

    def output(*tensors: Tensor) -> Tensor:
        given = iter(tensors)
        results = operator(
            *(next(given) if isinstance(x, Tensor) and x.requires_grad else x for x in arguments)
        )
        return results[0] if isinstance(results, tuple) else results

    leaves = [x for x in arguments if isinstance(x, Tensor) and x.requires_grad]
    assert torch.autograd.gradcheck(output, leaves)
