"""What PyTorch's machinery around autograd expects of every backend."""

import pytest
import torch
from conftest import METHODS, Inputs
from torch.utils.checkpoint import checkpoint

from edgewise import RelationAttention, RelativePositions


@pytest.mark.parametrize("method", ["reference", *METHODS])
def test_second_derivatives_are_those_of_finite_differences(method: str) -> None:
    inputs = Inputs(1, 2, 3, 3, 2, RelativePositions(1))
    leaves = [x.requires_grad_() for x in inputs.tensors.values()]

    def output(*tensors: torch.Tensor) -> torch.Tensor:
        return inputs.output(method, **dict(zip(inputs.tensors, tensors, strict=True)))

    assert torch.autograd.gradgradcheck(output, leaves)


@pytest.mark.parametrize("method", METHODS)
def test_backward_can_run_twice(method: str) -> None:
    inputs = Inputs(2, 3, 7, 7, 4, RelativePositions(2))
    leaves = [x.requires_grad_() for x in inputs.tensors.values()]
    output = inputs.output(method)
    once = torch.autograd.grad(output, leaves, inputs.grad, retain_graph=True)
    twice = torch.autograd.grad(output, leaves, inputs.grad)
    for first, second in zip(once, twice, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("n", [9, 800])
def test_checkpointing_changes_no_gradient(n: int) -> None:
    torch.manual_seed(0)
    layer = RelationAttention(6, 2, max_distance=3).double()
    x = torch.randn(1, n, 6, dtype=torch.float64)
    parameters = list(layer.parameters())
    plain = torch.autograd.grad(layer(x).square().sum(), parameters)
    kept = checkpoint(layer, x, use_reentrant=False)
    for actual, expected in zip(
        torch.autograd.grad(kept.square().sum(), parameters), plain, strict=True
    ):
        torch.testing.assert_close(actual, expected)


def test_what_inference_mode_left_behind_does_not_disturb_training() -> None:
    inputs = Inputs(2, 3, 23, 23, 4, RelativePositions(2))
    with torch.inference_mode():
        inputs.output("diagonal")
    expected = inputs.results("reference")
    torch.testing.assert_close(inputs.results("diagonal")["query"], expected["query"])


@pytest.mark.unhooked
def test_a_layer_can_be_exported() -> None:
    torch.manual_seed(0)
    layer = RelationAttention(6, 2, max_distance=3).double().eval()
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))
