"""Dropout whose random numbers are cheap on a CPU.

PyTorch draws a number of 24 bits for each element there, one thread at that: 6% of a training step
of the paper's base model, 16% of a small one. Sixteen bits decide as well, and the generator gives
four times sixteen at once. The probability is a multiple of 1/65536; what is kept is divided by the
one that is used.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int16
from torch import Tensor, nn
from torch.nn.functional import dropout

STEPS = 1 << 16


class Dropout(nn.Module):
    """Zeroes elements by chance in training, and scales the others so that the mean stays."""

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
        return apply(x, sixteen_bits(x), dropped)

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


def sixteen_bits(x: Float[Tensor, "..."]) -> Int16[Tensor, "..."]:
    """Random numbers from -32,768 to 32,767, one for each element."""
    fours = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return fours.view(torch.int16)[: x.numel()].view(x.shape)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "..."], random: Int16[Tensor, "..."], dropped: int
    ) -> Float[Tensor, "..."]:
        ctx.save_for_backward(random)
        ctx.dropped = dropped
        return x * factors(random, dropped, x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "..."]) -> tuple[Tensor, None, None]:
        (random,) = ctx.saved_tensors
        return grad * factors(random, ctx.dropped, grad.dtype), None, None


def factors(random: Int16[Tensor, "..."], dropped: int, dtype: torch.dtype) -> Float[Tensor, "..."]:
    """0 for the numbers below the limit, else what makes the mean 1."""
    # Compared as floats: PyTorch's comparison that makes booleans is ten times slower.
    kept = random.to(torch.promote_types(dtype, torch.float32)).ge_(dropped - STEPS // 2)
    return kept.mul_(STEPS / (STEPS - dropped)).to(dtype)
