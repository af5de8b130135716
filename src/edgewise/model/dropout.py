"""Dropout in place, whose random numbers are cheap on a CPU.

PyTorch draws a number of 24 bits for each element there, one thread at that: 6% of a training step
of the paper's base model, 16% of a small one. Sixteen bits decide as well, and the generator gives
four times sixteen at once. The probability is a multiple of 1/65536; what is kept is divided by the
one that is used. A byte an element is kept for the backward pass, not four.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import dropout

STEPS = 1 << 16


class Dropout(nn.Module):
    """Zeroes elements of x by chance in training, and scales the others so that the mean stays.

    Maybe in place: x must be the result of something that does not need it for its gradient.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.training or self.probability == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return dropout(x, self.probability)
        dropped = min(round(self.probability * STEPS), STEPS - 1)
        apply: Callable[..., Tensor] = _Dropout.apply
        return apply(x, kept(x, dropped), STEPS / (STEPS - dropped))

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


def kept(x: Float[Tensor, "..."], dropped: int) -> UInt8[Tensor, "..."]:
    """1 for each element that stays: all but `dropped` of 65,536 by chance."""
    count = (x.numel() + 3) // 4
    fours = torch.empty(count, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    random = fours.view(torch.int16)[: x.numel()].view(x.shape)
    # Into bytes: PyTorch's comparison that makes booleans takes several times as long.
    result = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    return torch.ge(random, dropped - STEPS // 2, out=result)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "..."], mask: UInt8[Tensor, "..."], factor: float
    ) -> Float[Tensor, "..."]:
        ctx.mark_dirty(x)
        ctx.save_for_backward(mask)
        ctx.factor = factor
        return x.mul_(mask).mul_(factor)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "..."]) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return (grad * mask).mul_(ctx.factor), None, None
