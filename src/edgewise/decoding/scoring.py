"""The log-probability of given translations, by one pass over each."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from edgewise.data.vocabulary import BEGIN
from edgewise.decoding.sources import seen
from edgewise.model.transformer import Transformer

# Logits held at a time.
SLICE = 1 << 22


def token_log_probabilities(
    model: Transformer,
    source: Int[Tensor, "batch n_source"],
    target: Int[Tensor, "batch n_target"],
) -> Float[Tensor, "batch n_target"]:
    """Of each target token after those before it. Source and target end with END, then PAD."""
    shifted = pad(target[:, :-1], (1, 0), value=BEGIN)
    states = model.states(source, seen(source, model.settings), shifted).flatten(0, 1)
    rows = max(8, SLICE // model.vocabulary // 8 * 8)
    parts = []
    for some, tokens in zip(states.split(rows), target.flatten().split(rows), strict=True):
        logits = model.logits(some)
        parts.append(logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(1))
    return torch.cat(parts).view(target.shape)
