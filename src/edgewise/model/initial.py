"""Initial values: each parameter's depends on the seed and on its own name only."""

import hashlib
import math

import torch
from torch import Tensor, nn

from edgewise.model.transformer import Transformer


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> None:
    """Set every parameter, so that two models share the values of all that they have in common."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(seed_of(seed, name))
        values = torch.empty(parameter.shape)  # made on the CPU, so that devices agree
        _fill(values, name, generator)
        parameter.copy_(values)


def _fill(values: Tensor, name: str, generator: torch.Generator) -> None:
    if name.endswith("embedding.weight"):
        nn.init.normal_(values, std=values.shape[1] ** -0.5, generator=generator)
    elif name.endswith("_table"):  # each head's by itself
        bound = math.sqrt(6 / (values.shape[-2] + values.shape[-1]))
        nn.init.uniform_(values, -bound, bound, generator=generator)
    elif values.dim() == 2:
        nn.init.xavier_uniform_(values, generator=generator)
    elif name.endswith("bias"):
        values.zero_()
    else:  # the weight of a layer norm
        values.fill_(1.0)


def seed_of(*parts: int | str) -> int:
    """A seed that depends on all of these."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
