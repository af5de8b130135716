"""Products with weights that stay the same, laid out once as the CPU likes them.

PyTorch's usual product rearranges the weights at each call, which for the few rows of a step takes
longer than the product. oneDNN, which PyTorch brings, takes weights that were rearranged before: a
step of one sentence takes a third of the time, one of 128 rows two thirds. Its operators are those
that torch.compile uses; where they are missing, or for other devices and types, the usual product
does the same.
"""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from edgewise.model.layers import ACTIVATIONS
from edgewise.model.settings import Activation


class Product:
    """x W^T + b, and a nonlinear function of that if wanted."""

    @torch.no_grad()
    def __init__(
        self,
        weight: Float[Tensor, "out inner"],
        bias: Float[Tensor, " out"] | None = None,
        *,
        activation: Activation | None = None,
    ) -> None:
        self._activation = activation
        self._bias = None if bias is None else bias.detach()
        self._packed = weight.device.type == "cpu" and weight.dtype == torch.float32 and available()
        weight = weight.detach()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight

    def __call__(self, x: Float[Tensor, "*rows inner"]) -> Float[Tensor, "*rows out"]:
        if self._packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, *_OF_ONEDNN[self._activation]
            )
            return result
        result = linear(x, self._weight, self._bias)
        return result if self._activation is None else ACTIVATIONS[self._activation](result)


# As its operator takes them: the name, numbers, and which kind.
_OF_ONEDNN: dict[Activation | None, tuple[str, list[float], str]] = {
    None: ("none", [], ""),
    "relu": ("relu", [], ""),
    "swish": ("swish", [], ""),
    "gelu": ("gelu", [], "none"),
}


@cache
def available() -> bool:
    """Whether this PyTorch has oneDNN's operators as they are called here, and they are right."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(8, 16, generator=generator) for _ in range(2))
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        found = torch.ops.mkldnn._linear_pointwise(x, packed, None, "relu", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(found, linear(x, weight).relu(), atol=1e-4)
