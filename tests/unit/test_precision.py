"""In half precision no backend errs more than twice what the definition does at that precision."""

import pytest
import torch
from conftest import METHODS, Inputs

from edgewise import RelativePositions


def errors(inputs: Inputs, method: str, truth: dict[str, torch.Tensor]) -> dict[str, float]:
    """The largest error of the output and of every gradient."""
    results = inputs.results(method)
    assert all(x.dtype == inputs.grad.dtype for x in results.values())
    return {name: (results[name] - truth[name]).abs().max().item() for name in truth}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("n", [40, 300])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_no_backend_errs_more_than_twice_the_definition(
    dtype: torch.dtype, causal: bool, n: int, seed: int
) -> None:
    inputs = Inputs(1, 2, n, n, 16, RelativePositions(8), causal=causal, dtype=dtype, seed=seed)
    truth = inputs.results("reference", torch.float64)
    allowed = errors(inputs, "reference", truth)
    for method in METHODS:
        for name, error in errors(inputs, method, truth).items():
            print(f"{method}, {name}: {error / allowed[name]:.2f} of the definition's error")
            assert error <= 2 * allowed[name], (method, name)
