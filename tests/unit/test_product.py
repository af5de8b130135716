"""Products with weights laid out once: those of PyTorch, and alike whatever the number of rows."""

import pytest
import torch
from conftest import require_rows_alike

from edgewise.decoding import product
from edgewise.decoding.product import Product
from edgewise.model.layers import ACTIVATIONS

SIZES = [(512, 512), (1664, 512), (512, 1024), (2048, 512), (72, 24), (33, 7)]


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_product_that_pytorch_computes(sizes, with_bias, activation):
    out, inner = sizes
    weight, x = torch.randn(out, inner), torch.randn(2, 5, inner)
    bias = torch.randn(out) if with_bias else None
    in_double = None if bias is None else bias.double()
    expected = torch.nn.functional.linear(x.double(), weight.double(), in_double)
    expected = expected if activation is None else ACTIVATIONS[activation](expected)
    found = Product(weight, bias, activation=activation)(x)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_usual_product(dtype):
    weight, x = torch.randn(9, 7, dtype=dtype), torch.randn(4, 7, dtype=dtype)
    assert torch.equal(Product(weight)(x), torch.nn.functional.linear(x, weight))


def test_where_the_operators_are_missing_the_usual_product_is_taken(monkeypatch):
    monkeypatch.setattr(product, "available", lambda: False)
    weight, bias, x = torch.randn(9, 7), torch.randn(9), torch.randn(4, 7)
    expected = torch.nn.functional.linear(x, weight, bias).relu()
    assert torch.equal(Product(weight, bias, activation="relu")(x), expected)


@pytest.mark.parametrize("laid_out", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_row_is_computed_alike_bit_for_bit_if_rows_are_a_multiple_of_four(
    sizes, laid_out, monkeypatch
):
    out, inner = sizes
    if not laid_out:
        monkeypatch.setattr(product, "available", lambda: False)
        require_rows_alike((4, 8, 12, 28, 64, 100, 128, 200), [inner])
    multiply, x = Product(torch.randn(out, inner)), torch.randn(256, inner)
    whole = multiply(x)
    for rows in (4, 8, 12, 28, 64, 100, 128, 200):
        assert torch.equal(multiply(x[:rows]), whole[:rows])


@pytest.mark.skipif(not product.available(), reason="this PyTorch has no oneDNN operators")
def test_later_changes_of_the_weights_are_not_seen():
    weight, x = torch.randn(64, 32), torch.randn(8, 32)
    multiply = Product(weight)
    before = multiply(x)
    weight.zero_()
    assert multiply._packed
    assert torch.equal(multiply(x), before)
