"""The layer: its parameters, its masks, and that it computes what its tables say."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from edgewise import RelationAttention, RelativePositions, relation_attention


def layer_of(d_model: int = 12, heads: int = 3, seed: int = 0, **settings: Any):
    torch.manual_seed(seed)
    return RelationAttention(d_model, heads, **settings).double()


def words(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def projected(layer: RelationAttention, x: Tensor) -> list[Tensor]:
    """Query, key and value by hand."""
    return [
        linear(x, p.weight, p.bias).unflatten(-1, (layer.heads, -1)).transpose(1, 2)
        for p in (layer.query, layer.key, layer.value)
    ]


def joined(layer: RelationAttention, output: Tensor) -> Tensor:
    return linear(output.transpose(1, 2).flatten(2), layer.output.weight, layer.output.bias)


def by_definition(layer: RelationAttention, x: Tensor, **options: Any) -> Tensor:
    output = relation_attention(
        *projected(layer, x),
        None if layer.max_distance is None else RelativePositions(layer.max_distance),
        key_table=layer.key_table,
        value_table=layer.value_table,
        method="reference",
        **options,
    )
    return joined(layer, output)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


VARIANTS = {
    "both tables": {"max_distance": 2},
    "keys only": {"max_distance": 2, "on_values": False},
    "values only": {"max_distance": 2, "on_keys": False},
    "neither": {"max_distance": 2, "on_keys": False, "on_values": False},
    "plain": {},
    "a table for each head": {"max_distance": 2, "per_head": True},
    "one label": {"max_distance": 0},
    "d_head given": {"max_distance": 2, "d_head": 5},
    "bias": {"max_distance": 2, "bias": True},
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_layer_computes_the_definition(variant: str, causal: bool) -> None:
    layer, x = layer_of(**VARIANTS[variant]), words(2, 7, 12)
    if variant == "bias":
        with torch.no_grad():
            for i, projection in enumerate((layer.query, layer.key, layer.value, layer.output)):
                projection.bias.copy_(words(12, seed=i))
    assert_equal(layer(x, causal=causal), by_definition(layer, x, causal=causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", ["both tables", "neither", "plain", "a table for each head"])
def test_zero_tables_or_none_are_plain_attention(variant: str, causal: bool) -> None:
    layer, x = layer_of(**VARIANTS[variant]), words(2, 7, 12)
    with torch.no_grad():
        for table in (layer.key_table, layer.value_table):
            if table is not None:
                table.zero_()
    plain = scaled_dot_product_attention(*projected(layer, x), is_causal=causal)
    assert_equal(layer(x, causal=causal), joined(layer, plain))


@pytest.mark.parametrize(
    ("settings", "tables"),
    [
        (VARIANTS["both tables"], {"key_table": (5, 4), "value_table": (5, 4)}),
        (VARIANTS["keys only"], {"key_table": (5, 4)}),
        (VARIANTS["values only"], {"value_table": (5, 4)}),
        (VARIANTS["neither"], {}),
        (VARIANTS["plain"], {}),
        (VARIANTS["one label"], {"key_table": (1, 4), "value_table": (1, 4)}),
        (
            VARIANTS["a table for each head"],
            {"key_table": (3, 5, 4), "value_table": (3, 5, 4)},
        ),
    ],
)
def test_parameters_are_four_projections_and_the_tables(
    settings: dict[str, Any], tables: dict[str, tuple[int, ...]]
) -> None:
    shapes = {name: tuple(x.shape) for name, x in layer_of(**settings).named_parameters()}
    projections = {f"{name}.weight": (12, 12) for name in ("query", "key", "value", "output")}
    assert shapes == {**projections, **tables}


def test_d_head_and_bias_shape_the_projections() -> None:
    layer = layer_of(max_distance=2, d_head=5, bias=True)
    for projection in (layer.query, layer.key, layer.value):
        assert projection.weight.shape == (15, 12)
        assert projection.bias.shape == (15,)
        assert not projection.bias.any()
    assert layer.output.weight.shape == (12, 15)
    assert layer.key_table.shape == (5, 5)


@pytest.mark.parametrize("per_head", [False, True])
def test_tables_begin_with_the_bound_of_glorot_for_one_head(per_head: bool) -> None:
    layer = layer_of(d_model=96, heads=3, max_distance=16, per_head=per_head)
    bound = math.sqrt(6 / (33 + 32))
    for table in (layer.key_table, layer.value_table):
        assert 0.99 * bound < table.abs().max() <= bound
    assert not torch.equal(layer.key_table, layer.value_table)
    if per_head:
        assert not torch.equal(layer.key_table[0], layer.key_table[1])


def test_a_layer_made_from_another_s_state_dict_is_the_same() -> None:
    settings = {"max_distance": 2, "per_head": True, "bias": True}
    first, second, x = layer_of(**settings), layer_of(seed=1, **settings), words(2, 7, 12)
    assert not torch.allclose(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


@pytest.mark.parametrize("variant", ["both tables", "plain", "one label"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(variant: str, causal: bool, side: str) -> None:
    layer, lengths, n = layer_of(**VARIANTS[variant]), (3, 9, 6), 9
    sentences = [words(1, length, 12, seed=length) for length in lengths]
    x, mask = torch.full((3, n, 12), 50.0, dtype=torch.float64), torch.zeros(3, n).bool()
    for i, sentence in enumerate(sentences):
        start = 0 if side == "right" else n - lengths[i]
        x[i, start : start + lengths[i]] = sentence
        mask[i, start : start + lengths[i]] = True
    together = layer(x, mask=mask, causal=causal)
    for i, sentence in enumerate(sentences):
        assert_equal(together[i, mask[i]], layer(sentence, causal=causal)[0])


def test_a_mask_of_four_dimensions_is_the_definition_s() -> None:
    layer, x = layer_of(max_distance=2), words(2, 7, 12)
    mask = torch.rand(2, 3, 7, 7, generator=torch.Generator().manual_seed(2)) < 0.6
    mask[1, 2, 4] = False
    for given in (mask, mask[:, :1], mask[:1, :, :, :1]):
        assert_equal(layer(x, mask=given), by_definition(layer, x, mask=given))


def test_a_square_batch_s_mask_is_of_tokens() -> None:
    # [7, 7] could be [n_query, n_key]: to the layer it is [batch, n_key].
    layer, x = layer_of(max_distance=2), words(7, 7, 12)
    mask = torch.rand(7, 7, generator=torch.Generator().manual_seed(2)) < 0.6
    assert_equal(layer(x, mask=mask), layer(x, mask=mask[:, None, None, :]))


def test_dropout_acts_in_training_only() -> None:
    layer, plain, x = (
        layer_of(max_distance=2, dropout=0.5),
        layer_of(max_distance=2),
        words(2, 7, 12),
    )
    assert not torch.equal(layer(x), layer(x))
    assert_equal(layer.eval()(x), plain(x))


def test_dropout_has_the_mean_of_no_dropout() -> None:
    layer, x = layer_of(max_distance=2, dropout=0.2), words(1, 5, 12)
    with torch.no_grad():
        mean = layer(x.expand(20_000, -1, -1)).mean(0, keepdim=True)
        torch.testing.assert_close(mean, layer.eval()(x), rtol=0, atol=0.05)


@pytest.mark.parametrize("variant", ["both tables", "a table for each head", "one label"])
@pytest.mark.parametrize("n", [7, 400])
def test_autocast_computes_in_bfloat16_and_keeps_gradients_in_float32(variant: str, n: int) -> None:
    layer, x = layer_of(**VARIANTS[variant]).float(), words(2, n, 12).float()
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)
    output.float().square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_computes_in_the_dtype_of_its_parameters(dtype: torch.dtype) -> None:
    layer, x = layer_of(max_distance=2), words(2, 7, 12)
    output = copy.deepcopy(layer).to(dtype)(x.to(dtype))
    assert output.dtype == dtype
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), layer(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("on_values", [False, True])
def test_the_key_table_of_one_label_has_a_zero_gradient(per_head: bool, on_values: bool) -> None:
    layer = layer_of(max_distance=0, per_head=per_head, on_values=on_values)
    layer(words(2, 7, 12)).square().sum().backward()
    zero = torch.zeros_like(layer.key_table)
    torch.testing.assert_close(layer.key_table.grad, zero, rtol=0, atol=1e-10)
    if on_values:
        assert layer.value_table.grad.any()


@pytest.mark.parametrize("n", [7, 300])
def test_tables_of_later_positions_have_no_gradient_under_causal(n: int) -> None:
    layer = layer_of(max_distance=3)
    layer(words(2, n, 12), causal=True).square().sum().backward()
    for table in (layer.key_table, layer.value_table):
        assert not table.grad[4:].any()
        assert table.grad[:4].all()


def test_the_settings_are_shown() -> None:
    shown = repr(layer_of(max_distance=2, d_head=5, dropout=0.25, on_values=False))
    assert "d_model=12, heads=3, d_head=5, max_distance=2, per_head=False, dropout=0.25" in shown
    assert "on keys" in shown
    assert "on keys and values" in repr(layer_of(max_distance=2, per_head=True))
    assert ", on " not in repr(layer_of())


def test_on_the_meta_device_shapes_come_out() -> None:
    with torch.device("meta"):
        layer = RelationAttention(12, 3, max_distance=2)
        assert layer(torch.empty(2, 5, 12)).shape == (2, 5, 12)
