"""Cross entropy with label smoothing, summed over the tokens that are not padding."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.data.vocabulary import PAD


def summed_loss(
    logits: Float[Tensor, "batch n vocabulary"],
    target: Int[Tensor, "batch n"],
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Sum over tokens; `smoothing` is the probability spread evenly over all pieces."""
    return cross_entropy(
        # In float32 at least: under autocast the logits are half.
        logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)),
        target.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )
