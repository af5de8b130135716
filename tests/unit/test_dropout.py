"""Dropout by sixteen bits: the probability, the mean, the gradient, and when nothing is dropped."""

import pytest
import torch

from edgewise.model.dropout import STEPS, Dropout, kept


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.75])
def test_elements_are_dropped_with_the_probability_and_the_mean_stays(probability: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(1000, 1003)
    y = Dropout(probability)(x)
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - probability), rel=1e-4)]
    # Five standard deviations of the mean of a million draws.
    deviation = 5 * (probability * (1 - probability) / x.numel()) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(probability, abs=deviation + 2**-17)
    assert y.double().mean().item() == pytest.approx(1, abs=deviation / (1 - probability))


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(2)
    kept = (Dropout(0.5)(torch.ones(4096, 64)) > 0).double().flatten() - 0.5
    for distance in range(1, 9):  # four numbers come from one draw of the generator
        correlation = 4 * (kept[distance:] * kept[:-distance]).mean().item()
        assert abs(correlation) < 5 / len(kept) ** 0.5


def test_the_share_that_is_asked_for_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
    monkeypatch.setattr(torch.Tensor, "random_", lambda *_: every.view(torch.int64))
    for dropped in (0, 1, 6554, STEPS - 1):
        assert kept(torch.empty(STEPS), dropped).sum(dtype=torch.int64).item() == STEPS - dropped
    assert kept(torch.empty(7, 3), 5).shape == (7, 3)


def test_the_gradient_goes_where_the_value_went() -> None:
    torch.manual_seed(3)
    x = torch.randn(5, 7, 3, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4)(1 * x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert 0 < (grad == 0).sum() < grad.numel()
    torch.testing.assert_close(y, x * grad, rtol=1e-12, atol=0)


def test_what_it_is_given_is_overwritten() -> None:
    x = torch.ones(50)
    assert Dropout(0.4)(x) is x
    assert 0 < (x == 0).sum() < 50


def test_the_same_seed_draws_the_same() -> None:
    dropout = Dropout(0.4)
    torch.manual_seed(4)
    first, second = dropout(torch.ones(100)), dropout(torch.ones(100))
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    assert torch.equal(dropout(torch.ones(100)), first)


def test_nothing_is_dropped_outside_of_training_or_with_probability_0() -> None:
    x = torch.randn(4, 5)
    assert Dropout(0.0)(x) is x
    assert Dropout(0.9).eval()(x) is x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half(dtype: torch.dtype) -> None:
    x = torch.ones(64, dtype=dtype, requires_grad=True)
    y = Dropout(0.5)(1 * x)
    y.sum().backward()
    assert y.dtype == dtype == (x.grad.dtype if x.grad is not None else None)
    assert set(y.tolist()) == {0.0, 2.0}
