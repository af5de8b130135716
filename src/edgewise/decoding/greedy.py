"""Greedy decoding: at each position the likeliest token. The whole prefix is computed anew for each
token, which is simple, right, and slow for long sentences.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.model.transformer import Transformer


@torch.inference_mode()
def greedy(
    model: Transformer,
    source: Int[Tensor, "batch n_source"],
    mask: Bool[Tensor, "batch n_source"],
    *,
    begin: int,
    end: int,
    extra_tokens: int,
) -> list[list[int]]:
    """The tokens of each translation, without begin and end: at most as many as the source has, and
    `extra_tokens` more (Vaswani et al., section 6.1).
    """
    limits = mask.sum(dim=1) + extra_tokens
    memory = model.encode(source, mask)
    results: list[list[int]] = [[] for _ in range(len(source))]
    rows = torch.arange(len(source), device=source.device)  # which sentence each row is
    prefix = torch.full((len(source), 1), begin, device=source.device)
    for length in range(int(limits.max())):
        last = model.decode(prefix, memory, mask)[:, -1:]
        token = model.logits(last)[:, 0].argmax(-1)
        going = (token != end) & (length < limits)
        prefix = torch.cat((prefix, token[:, None]), dim=1)[going]
        memory, mask, rows, limits = memory[going], mask[going], rows[going], limits[going]
        for row, value in zip(rows.tolist(), prefix[:, -1].tolist(), strict=True):
            results[row].append(value)
        if len(rows) == 0:
            break
    return results
