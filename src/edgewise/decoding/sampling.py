"""Translations drawn by chance, each token with its probability.

A draw depends on the seed, the sentence and the number of the sample, not on the batch: the same
sentence gives the same translations wherever it stands.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.decoding.beam import LEAVING
from edgewise.decoding.bounds import Bounds
from edgewise.decoding.candidates import Predictions
from edgewise.decoding.engine import Hypothesis, Tokens
from edgewise.decoding.settings import DecodingSettings, penalty
from edgewise.decoding.step import Start, Step
from edgewise.errors import DataError


def sample(
    step: Step,
    start: Start,
    bounds: Bounds,
    settings: DecodingSettings,
    sources: Sequence[Tokens],
) -> list[list[Hypothesis]]:
    """Sample `n_best` translations of each sentence that continue `start`, most likely first."""
    slots = settings.n_best
    living = list(range(len(sources)))
    chances = [
        [_chance(settings.seed, source, number, start.length) for number in range(slots)]
        for source in sources
    ]
    results = [[row[1:] for _ in range(slots)] for row in start.tokens.tolist()]
    sums = start.log_probability.double().numpy()[:, None].repeat(slots, axis=1)
    going = np.ones((len(sources), slots), dtype=bool)
    tokens = start.tokens[:, -1:].expand(-1, slots)
    for length in bounds.steps(start.length):
        predictions = step(tokens, torch.zeros_like(tokens) if length == start.length else None)
        uniform = [[chance.random() for chance in chances[i]] for i in living]
        values, tokens = _drawn(predictions, settings, bounds.hidden(length), uniform)
        for row, given in bounds.ending(predictions, living, length, slots):
            values[row], tokens[row] = given, bounds.end
        if values.isnan().any():
            raise DataError("the model's output is not a number: its weights are damaged")
        for row, i in enumerate(living):
            for slot in np.nonzero(going[i])[0]:
                sums[i, slot] += float(values[row, slot])
                token = int(tokens[row, slot])
                if token == bounds.end:
                    going[i, slot] = False
                else:
                    results[i][slot].append(token)
        kept = [row for row, i in enumerate(living) if going[i].any() and bounds.wanted(i)]
        if not kept:
            break
        if len(living) - len(kept) >= LEAVING * len(living):
            step.keep(torch.tensor(kept))
            tokens = tokens[kept]
            living = [living[row] for row in kept]
    return [
        sorted(
            (
                Hypothesis(
                    tuple(found),
                    float(total),
                    float(total) / penalty(len(found) + 1, settings.length_penalty),
                )
                for found, total in zip(samples, totals, strict=True)
            ),
            key=lambda hypothesis: -hypothesis.score,
        )
        for samples, totals in zip(results, sums, strict=True)
    ]


def _chance(seed: int, source: Tokens, number: int, begun: int) -> np.random.Generator:
    """Every position has its draw, also those that are given."""
    chance = np.random.default_rng([seed, number, *source])
    chance.random(begun)
    return chance


def _drawn(
    predictions: Predictions,
    settings: DecodingSettings,
    hidden: Int[Tensor, " hidden"],
    uniform: list[list[float]],
) -> tuple[Float[Tensor, "batch slots"], Int[Tensor, "batch slots"]]:
    """A token of each hypothesis and its log-probability, on the CPU."""
    shape = len(uniform), len(uniform[0])
    rows = shape[0] * shape[1]
    if settings.top_k is not None:
        values, choices = predictions.best(settings.top_k, hidden)
    elif settings.top_p is not None:
        values, choices = predictions.all(hidden).sort(dim=1, descending=True)
    else:
        values, choices = predictions.all(hidden), None
    values = values[:rows].cpu()
    # In float64, one after another: the sum of tens of thousands must not lose the rare ones.
    weights = torch.softmax(values.double() / settings.temperature, dim=1)
    if settings.top_p is not None:
        before = weights.cumsum(1) - weights
        weights = weights.masked_fill(before >= settings.top_p, 0)
    cumulative = weights.cumsum(1)
    wanted = torch.tensor(uniform, dtype=torch.float64).view(rows, 1) * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, wanted, right=True).clamp_(max=values.shape[1] - 1)
    # Rounding may leave the number at the very end, where nothing is likely: the last that is.
    last = (weights > 0).to(torch.uint8).cumsum(1, dtype=torch.int64).argmax(1, keepdim=True)
    index = torch.minimum(index, last)
    tokens = index if choices is None else choices[:rows].cpu().gather(1, index)
    return values.gather(1, index).view(shape), tokens.view(shape)
