"""An explanation tells what the model did: the same weights, and logits that add up to them."""

from typing import Any

import pytest
import torch
from messages import raises
from torch import Tensor

from edgewise import RelationAttention, RelativePositions
from edgewise.data.vocabulary import BEGIN, END
from edgewise.decoding.explanation import Attention, explain, weight_by_distance
from edgewise.errors import ArgumentError
from edgewise.model.initial import initialise
from edgewise.model.layers import CrossAttention
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

VOCABULARY = 19
SOURCE, TARGET = [5, 9, 4, 7, 18, 6, END], [BEGIN, 8, 11, 4, 16]
KINDS: dict[str, dict[str, Any]] = {
    "a table for each head": {"tables": "head"},
    "a table for each layer": {"tables": "layer"},
    "a table for all layers": {"tables": "shared"},
    "keys only": {"on_values": False},
    "values only": {"on_keys": False},
    "relative and sinusoids": {"sinusoids": True},
    "one label": {"max_distance": 0},
    "no clipping": {"max_distance": 20},
    "sinusoids": {"max_distance": None, "sinusoids": True},
    "no positions": {"max_distance": None},
    "norm before": {"norm": "pre"},
}

pytestmark = pytest.mark.usefixtures("one_thread")


def model_of(**changes: Any) -> Transformer:
    """A small model in double precision, whose norms and biases would be missed."""
    small = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 12, "heads": 3, "d_ff": 20}
    settings = ModelSettings(**{**small, "dropout": 0.3, "max_distance": 2, **changes})
    model = Transformer(settings, VOCABULARY)
    initialise(model, 1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.rand(parameter.shape, generator=generator))
    return model.double().eval()


@torch.no_grad()
def calls(model: Transformer) -> dict[str, list[tuple[Any, tuple[Tensor, ...], Tensor]]]:
    """Each attention layer of a translation as the model itself runs it: layer, input, output."""
    seen: dict[str, list[tuple[Any, tuple[Tensor, ...], Tensor]]] = {}

    def keep(layer: Any, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        # A copy: the sum with the residual is made in place of the output.
        seen.setdefault(names[layer], []).append((layer, arguments, output.clone()))

    names: dict[Any, str] = {}
    for stack in ("encoder", "decoder"):
        for module in getattr(model, stack).modules():
            if isinstance(module, RelationAttention):
                names[module] = stack
            elif isinstance(module, CrossAttention):
                names[module] = "cross"
    hooks = [layer.register_forward_hook(keep) for layer in names]
    model(torch.tensor([SOURCE]), None, torch.tensor([TARGET]))
    for hook in hooks:
        hook.remove()
    return seen


@torch.no_grad()
def projected(layer: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value [head, n, d_head]; keys and values of the last argument."""
    x, memory = arguments[0][0], next(a for a in reversed(arguments) if a is not None)[0]
    return tuple(  # type: ignore[return-value]
        torch.stack((states @ weight.T).chunk(layer.heads, dim=-1))
        for states, weight in (
            (x, layer.query.weight),
            (memory, layer.key.weight),
            (memory, layer.value.weight),
        )
    )


def edges(table: Tensor | None, k: int | None, query: Tensor, key: Tensor) -> Tensor:
    """a_ij [head, n_query, n_key, d_head] by the definition."""
    n_query, n_key = query.shape[1], key.shape[1]
    if table is None or k is None:
        return query.new_zeros(1).expand(len(query), n_query, n_key, query.shape[-1])
    tables = table if table.dim() == 3 else table[None]
    found = tables[:, RelativePositions(k).labels(n_query, n_key)]
    return found.expand(len(query), -1, -1, -1)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# What the model did.


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_logits_are_those_of_the_definition(kind: str) -> None:
    model = model_of(**KINDS[kind])
    explanation = explain(model, SOURCE, TARGET)
    for stack, seen in calls(model).items():
        told: list[Attention] = getattr(explanation, stack)
        assert len(told) == len(seen) == (2 if stack == "encoder" else 3)
        for attention, (layer, arguments, output) in zip(told, seen, strict=True):
            query, key, value = projected(layer, arguments)
            k = getattr(layer, "max_distance", None)
            key_table, value_table = (
                None if table is None else table.detach()
                for table in (getattr(layer, f"{name}_table", None) for name in ("key", "value"))
            )
            scale = query.shape[-1] ** -0.5
            assert_equal(attention.content, scale * torch.einsum("hid,hjd->hij", query, key))
            edge_key = edges(key_table, k, query, key)
            relation = scale * torch.einsum("hid,hijd->hij", query, edge_key)
            assert (attention.relation is None) == (key_table is None)
            if attention.relation is not None:
                assert_equal(attention.relation, relation)
            logits = attention.content + relation
            if stack == "decoder":
                logits = logits.masked_fill(torch.ones_like(logits).triu(1) > 0, -torch.inf)
            assert_equal(attention.weights, logits.softmax(-1))

            # And with these weights the layer's output is what the model went on with.
            edge_value = value[:, None] + edges(value_table, k, query, key)
            heads = torch.einsum("hij,hijd->hid", attention.weights, edge_value)
            assert_equal(torch.cat(list(heads), dim=-1) @ layer.output.weight.T, output[0])


def test_an_explanation_has_the_tokens_and_the_clipping_distance() -> None:
    explanation = explain(model_of(), SOURCE, TARGET)
    assert (explanation.source, explanation.target) == (SOURCE, TARGET)
    assert explanation.max_distance == 2
    assert explain(model_of(max_distance=None), SOURCE, TARGET).max_distance is None
    assert explanation.cross[0].weights.shape == (3, len(TARGET), len(SOURCE))


def test_the_weights_of_a_model_in_half_precision_are_of_single_precision() -> None:
    explanation = explain(model_of().bfloat16(), SOURCE, TARGET)
    for attention in (*explanation.encoder, *explanation.decoder, *explanation.cross):
        assert attention.weights.dtype == torch.float32
        sums = attention.weights.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-6, atol=1e-6)


def test_a_model_is_left_as_it_was() -> None:
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    explain(model, SOURCE, TARGET)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_model_in_training_is_refused() -> None:
    with raises(ArgumentError, "model", "model.eval()"):
        explain(model_of().train(), SOURCE, TARGET)


@pytest.mark.parametrize(
    ("source", "target", "facts"),
    [
        ([], TARGET, ("source", 0, 18, "[]")),
        (SOURCE, [], ("target", 0, 18, "[]")),
        ([4, 19], TARGET, ("source", 0, 18, "[4, 19]")),
        (SOURCE, [-1], ("target", 0, 18, "[-1]")),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(
    source: list[int], target: list[int], facts: tuple[object, ...]
) -> None:
    with raises(ArgumentError, *facts):
        explain(model_of(), source, target)


# Weight by distance.


WEIGHTS = torch.tensor(
    [
        [[0.5, 0.3, 0.2], [0.1, 0.7, 0.2], [0.6, 0.3, 0.1]],
        [[0.1, 0.1, 0.8], [0.2, 0.4, 0.4], [0.0, 1.0, 0.0]],
    ],
    dtype=torch.float64,
)
CAUSAL = torch.tensor([[[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.5, 0.2, 0.3]]], dtype=torch.float64)


def test_the_mean_weight_at_a_distance_is_of_the_queries_that_have_such_a_key() -> None:
    found = weight_by_distance(WEIGHTS, max_distance=None, causal=False)
    assert found.distances == [-2, -1, 0, 1, 2]
    # The key at distance 1: of query 0 it is key 1, of query 1 key 2; query 2 has none.
    expected = [[0.6, 0.2, 1.3 / 3, 0.25, 0.2], [0.0, 0.6, 0.5 / 3, 0.25, 0.8]]
    assert_equal(found.weights, torch.tensor(expected, dtype=torch.float64))
    assert found.beyond is None


def test_weight_beyond_the_clipping_distance_is_of_the_queries_that_have_keys_there() -> None:
    found = weight_by_distance(WEIGHTS, max_distance=1, causal=False)
    assert found.beyond is not None
    # Query 0 has key 2 there, query 2 has key 0; query 1 has none.
    assert_equal(found.beyond, torch.tensor([0.4, 0.4], dtype=torch.float64))
    nearest = weight_by_distance(WEIGHTS, max_distance=0, causal=False).beyond
    assert nearest is not None
    assert_equal(nearest, torch.tensor([1.7 / 3, 2.5 / 3], dtype=torch.float64))


def test_a_decoder_has_no_distances_ahead_nor_weight_beyond_them() -> None:
    found = weight_by_distance(CAUSAL, max_distance=1, causal=True)
    assert found.distances == [-2, -1, 0]
    assert_equal(found.weights, torch.tensor([[0.5, 0.3, 1.9 / 3]], dtype=torch.float64))
    assert found.beyond is not None
    assert_equal(found.beyond, torch.tensor([0.5], dtype=torch.float64))  # of query 2 alone


def test_no_weight_is_beyond_the_clipping_distance_of_a_short_sentence() -> None:
    assert weight_by_distance(WEIGHTS, max_distance=2, causal=False).beyond is None
    assert weight_by_distance(torch.ones(2, 1, 1), max_distance=0, causal=True).beyond is None


def test_equal_weights_have_the_same_mean_at_every_distance() -> None:
    n = 7
    found = weight_by_distance(torch.full((2, n, n), 1 / n), max_distance=3, causal=False)
    torch.testing.assert_close(found.weights, torch.full((2, 2 * n - 1), 1 / n))


def test_distances_end_at_the_reach_and_what_is_beyond_k_does_not() -> None:
    n, k, reach = 9, 5, 2
    weights = torch.rand(4, n, n, dtype=torch.float64).softmax(-1)
    whole = weight_by_distance(weights, max_distance=k, causal=False)
    short = weight_by_distance(weights, max_distance=k, causal=False, reach=reach)
    assert short.distances == [-2, -1, 0, 1, 2]
    middle = slice(n - 1 - reach, n + reach)
    assert_equal(short.weights, whole.weights[:, middle])
    assert short.beyond is not None and whole.beyond is not None
    assert_equal(short.beyond, whole.beyond)


def test_each_layer_is_told_by_distance() -> None:
    explanation = explain(model_of(), SOURCE, TARGET)
    by_distance = explanation.by_distance()
    assert [len(by_distance[stack]) for stack in ("encoder", "decoder")] == [2, 3]
    assert by_distance["encoder"][1].distances == list(range(-6, 7))
    assert by_distance["decoder"][2].distances == list(range(-4, 1))
    expected = weight_by_distance(explanation.decoder[2].weights, max_distance=2, causal=True)
    assert_equal(by_distance["decoder"][2].weights, expected.weights)
