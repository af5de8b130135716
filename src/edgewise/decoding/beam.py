"""Beam search over a step function: any model that says how likely each next token is."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.decoding.bounds import Bounds
from edgewise.decoding.candidates import Predictions
from edgewise.decoding.engine import Hypothesis
from edgewise.decoding.settings import penalty
from edgewise.decoding.step import Start, Step
from edgewise.errors import DataError

# Finished sentences leave when they are so many of the batch: leaving moves what was computed.
LEAVING = 1 / 8


def beam_search(
    step: Step, start: Start, bounds: Bounds, *, beam: int, n_best: int, length_penalty: float
) -> list[list[Hypothesis]]:
    """The best translations found of each sentence that begin as `start` says, best first.

    Of all continuations of the kept hypotheses the best `beam` that go on are kept. Those with the
    end among the best `beam` of all are finished. A sentence is done when nothing that goes on
    could overtake its `n_best` finished ones: a log-probability only falls, and the penalty of the
    greatest length favours it most. At its limit a hypothesis must end. A sentence that is no
    longer wanted is given up, with whatever it has.
    """
    sentences = [_Sentence(limit) for limit in bounds.limits]
    living = list(range(len(sentences)))  # which sentence each row of the batch is
    scores = np.full((len(sentences), beam), -np.inf, dtype=np.float32)
    scores[:, 0] = start.log_probability
    begun = start.tokens.numpy()[:, None, :].repeat(beam, axis=1)
    tokens, history = begun[:, :, -1], begun[:, :, 1:]
    parents = np.zeros_like(tokens)
    for length in bounds.steps(start.length):
        predictions = step(torch.from_numpy(tokens), torch.from_numpy(parents))
        values, choices = _candidates(predictions, bounds, living, length, beam)
        total = torch.from_numpy(scores)[:, :, None] + values
        top = total.flatten(1).topk(min(2 * beam, total[0].numel()), dim=1)
        ranked = top.values.numpy()
        if np.isnan(ranked).any():
            raise DataError("the model's output is not a number: its weights are damaged")
        origin = (top.indices // values.shape[2]).numpy()
        token = choices.flatten(1).gather(1, top.indices).numpy()
        ends = token == bounds.end
        for row, rank in zip(
            *np.nonzero(ends[:, :beam] & (ranked[:, :beam] > -np.inf)), strict=True
        ):
            value = float(ranked[row, rank])
            sentences[living[row]].finished.append(
                Hypothesis(
                    tuple(history[row, origin[row, rank]].tolist()),
                    value,
                    value / penalty(length + 1, length_penalty),
                )
            )
        order = np.argsort(ends, axis=1, kind="stable")[:, :beam]
        at = np.arange(len(living))[:, None]
        # What ended takes no slot, though too few may be left to fill them all.
        scores = np.where(ends[at, order], -np.inf, ranked[at, order]).astype(np.float32)
        # A slot without a hypothesis goes on with anything.
        tokens = np.where(scores == -np.inf, bounds.end, token[at, order])
        parents = origin[at, order]
        history = np.concatenate((history[at, parents], tokens[:, :, None]), axis=2)
        done = np.array(
            [
                sentences[i].is_done(float(scores[row, 0]), n_best, length_penalty)
                or not bounds.wanted(i)
                for row, i in enumerate(living)
            ]
        )
        scores[done] = -np.inf
        if done.all():
            break
        if done.sum() >= LEAVING * len(living):
            (kept,) = np.nonzero(~done)
            step.keep(torch.from_numpy(kept))
            living = [living[row] for row in kept]
            scores, tokens = scores[kept], tokens[kept]
            parents, history = parents[kept], history[kept]
    return [sentence.best(n_best) for sentence in sentences]


class _Sentence:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.finished: list[Hypothesis] = []

    def is_done(self, value: float, n_best: int, power: float) -> bool:
        """Whether the best that goes on, with this log-probability, has no hope."""
        if value == -np.inf:
            return True
        if len(self.finished) < n_best:
            return False
        return self.best(n_best)[-1].score >= value / penalty(self.limit + 1, power)

    def best(self, count: int) -> list[Hypothesis]:
        return sorted(self.finished, key=lambda hypothesis: -hypothesis.score)[:count]


def _candidates(
    predictions: Predictions, bounds: Bounds, living: list[int], length: int, beam: int
) -> tuple[Float[Tensor, "batch beam count"], Int[Tensor, "batch beam count"]]:
    """The best continuations of each hypothesis, on the CPU; at a limit only the end."""
    # One that goes on may have as many as the beam; and the end.
    found = predictions.best(beam + 1, bounds.hidden(length))
    rows = len(living) * beam
    values, tokens = (part[:rows].view(len(living), beam, -1).cpu() for part in found)
    for row, given in bounds.ending(predictions, living, length, beam):
        values[row] = -torch.inf
        values[row, :, 0], tokens[row, :, 0] = given, bounds.end
    return values, tokens
