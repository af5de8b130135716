"""A relation, a compatibility and a backend from outside the package."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from messages import raises
from torch import Tensor

from edgewise import EdgeLabels, EdgeList, RelationAttention, RelativePositions, relation_attention
from edgewise.attention import Compatibility, Relation, backends
from edgewise.attention.inputs import AttentionInputs
from edgewise.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class SameWord(Relation):
    """Label 1 for tokens of one word, 0 for others."""

    words: Tensor
    n_labels: int | None = 2

    def labels_between(self, n_query: int, n_key: int, device: torch.device) -> Tensor:
        return (self.words[:, :, None] == self.words[:, None, :]).long()


@dataclass(frozen=True, eq=False)
class Distance(Compatibility):
    """e_ij = -t |q_i - k_j - a_ij|^2 + s."""

    t: Tensor
    s: Tensor

    @classmethod
    def parameter_shapes(cls, heads: int, d_head: int) -> dict[str, tuple[int, ...]]:
        return {"t": (1,), "s": (1,)}

    def logits(self, query: Tensor, key: Tensor, edge_key: Tensor | None, scale: float) -> Tensor:
        difference = query - key if edge_key is None else query - key - edge_key
        return -self.t * difference.square().sum(-1) + self.s


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("method", ["auto", "reference", "gather", "chunked_gather"])
def test_a_relation_from_outside_equals_its_labels(method: str) -> None:
    torch.manual_seed(0)
    leaves = [random(2, 3, 5, 4) for _ in range(3)] + [random(2, 4) for _ in range(2)]
    query, key, value, key_table, value_table = leaves
    words = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 2, 2, 3]])
    found = []
    for relation in (
        SameWord(words),
        EdgeLabels(SameWord(words).labels_between(5, 5, words.device)),
    ):
        output = relation_attention(
            *(query, key, value, relation),
            key_table=key_table,
            value_table=value_table,
            method=method,
        )
        found.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)
    assert SameWord(words).to("meta").words.device.type == "meta"


def test_a_layer_takes_a_relation_from_outside() -> None:
    layer = RelationAttention(8, 2, n_labels=2)
    words = torch.tensor([[0, 0, 1]])
    output = layer(torch.randn(1, 3, 8), relations=SameWord(words))
    assert output.shape == (1, 3, 8)


@pytest.mark.parametrize("relations", ["positions", "labels", "edges"])
def test_a_compatibility_from_outside_equals_the_definition(
    relations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.nonlinear, "BLOCK", 100)
    torch.manual_seed(0)
    leaves = [random(2, 3, 5, 4) for _ in range(3)]
    leaves += [random(5, 4), random(5, 4), random(1), random(1)]
    query, key, value, key_table, value_table, t, s = leaves
    relation = {
        "positions": RelativePositions(2),
        "labels": EdgeLabels(torch.randint(-1, 5, (2, 5, 5))),
        "edges": EdgeList(*torch.randint(5, (2, 9)), torch.randint(-1, 5, (9,))),
    }[relations]
    found = []
    for method in ("auto", "reference"):
        output = relation_attention(
            *(query, key, value, relation),
            key_table=key_table,
            value_table=value_table,
            compatibility=Distance(t, s),
            method=method,
        )
        found.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_layer_learns_the_parameters_of_a_compatibility_from_outside() -> None:
    layer = RelationAttention(8, 2, max_distance=2, compatibility=Distance)
    layer(torch.randn(1, 5, 8)).square().sum().backward()
    for name in ("t", "s"):
        assert dict(layer.named_parameters())[name].grad is not None


@pytest.fixture
def a_backend() -> Iterator[list[AttentionInputs]]:
    """A backend for plain attention, and what it was given."""
    given: list[AttentionInputs] = []

    def supports(inputs: AttentionInputs) -> str | None:
        return None if inputs.relations is None else "has no edge vectors; got some"

    def run(inputs: AttentionInputs) -> Tensor:
        given.append(inputs)
        return (inputs.scale * inputs.query @ inputs.key.mT).softmax(-1) @ inputs.value

    backends.register(backends.Backend("mine", supports, cost=lambda inputs: 0.0, run=run))
    yield given
    del backends._BACKENDS["mine"]


def test_a_backend_from_outside_is_requested_and_selected(
    a_backend: list[AttentionInputs],
) -> None:
    query, key, value = (random(2, 3, 5, 4) for _ in range(3))
    expected = relation_attention(query, key, value, None, method="reference")
    for method in ("mine", "auto"):
        output = relation_attention(query, key, value, None, method=method)
        torch.testing.assert_close(output, expected)
    assert len(a_backend) == 2
    with raises(ArgumentError, "mine", "has no edge vectors", "auto"):
        relation_attention(
            query, key, value, RelativePositions(1), key_table=random(3, 4), method="mine"
        )
    relation_attention(query, key, value, RelativePositions(1), key_table=random(3, 4))
    assert len(a_backend) == 2


def test_a_name_is_registered_once(a_backend: list[AttentionInputs]) -> None:
    for name in ("mine", "gather", "auto"):
        with raises(ArgumentError, "name", name):
            backends.register(backends.Backend(name, lambda inputs: None, lambda inputs: 0.0, len))
